"""Files of a log that are missing, too short, too long, misnamed or deleted during a read."""

import os
from dataclasses import replace

import pytest

from store.commitlog import scanner as scan
from store.commitlog.commit_log import CommitLog
from store.commitlog.planner import LogPlanner
from store.errors import DamageError
from tests.support.dispatching import dispatch_all, tree
from tests.support.stores.damaged import CONFIG, FILE_SIZE, FILES, LAST_BASE, RECORDS, Store


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_missing_file(store: Store, fail_on_data_loss: bool) -> None:
    store.write({base: content for base, content in FILES.items() if base != FILE_SIZE})
    before = [r for r in RECORDS if r.commit_log_offset < FILE_SIZE]
    if fail_on_data_loss:
        with pytest.raises(DamageError, match="no file holds this part") as caught:
            store.dispatch()
        assert (store.store_root / "commitlog", FILE_SIZE) == (
            caught.value.path,
            caught.value.offset,
        )
        store.assert_built(before)
        return
    [lost] = store.dispatch(fail_on_data_loss=False).lost
    assert (lost.begin, lost.end) == (FILE_SIZE, 2 * FILE_SIZE)
    store.assert_built(before + [r for r in RECORDS if r.commit_log_offset >= 2 * FILE_SIZE])


@pytest.mark.parametrize("base", [0, FILE_SIZE, LAST_BASE])
@pytest.mark.parametrize("size", [1, FILE_SIZE - 1, FILE_SIZE + 1, 2 * FILE_SIZE])
def test_a_file_of_another_size(store: Store, base: int, size: int) -> None:
    store.write(FILES)
    os.truncate(store.path(base), size)
    before = [r for r in RECORDS if r.commit_log_offset < base]
    with pytest.raises(DamageError, match=f"has {size} bytes.*have {FILE_SIZE}") as caught:
        store.dispatch()
    assert (store.path(base), base) == (caught.value.path, caught.value.offset)
    store.assert_built(before)
    [lost] = store.dispatch(fail_on_data_loss=False).lost
    assert (base, base + FILE_SIZE) == (lost.begin, lost.end)
    store.assert_built(before + [r for r in RECORDS if r.commit_log_offset >= base + FILE_SIZE])


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_the_last_file_of_a_live_log_is_never_skipped(
    store: Store, fail_on_data_loss: bool
) -> None:
    store.write(FILES, has_abort=True)
    os.truncate(store.path(LAST_BASE), FILE_SIZE - 1)
    with pytest.raises(DamageError, match="has 1023 bytes"):
        store.dispatch(fail_on_data_loss=fail_on_data_loss)
    store.assert_built([r for r in RECORDS if r.commit_log_offset < LAST_BASE])


def test_a_name_that_is_no_offset_is_refused(store: Store) -> None:
    store.write(FILES)
    store.path(FILE_SIZE).rename(store.store_root / "commitlog" / "0000")
    with pytest.raises(DamageError, match="20 digits"):
        store.dispatch()


def test_a_file_size_that_does_not_fit_the_names_is_refused(store: Store) -> None:
    store.write(FILES)
    config = replace(CONFIG, mapped_file_size_commit_log=1000)
    with pytest.raises(DamageError, match=r"not begin at a multiple of the file size 1000.*broker"):
        dispatch_all(store.store_root, store.output, config)
    assert tree(store.output).keys() <= {"lock"}


def test_a_file_deleted_since_the_plan_is_lost(store: Store) -> None:
    store.write(FILES)
    (first, *_) = LogPlanner(CommitLog([store.path(0).parent], CONFIG), lambda: True).plan(0).ranges
    store.path(0).unlink()
    (found,) = scan.Scanner(CONFIG).read(first, skip_damage=True)
    assert isinstance(found, scan.Damage)
    assert (found.begin, found.end) == (first.begin, first.end)
    assert "deleted" in found.reason


def test_a_file_deleted_while_it_is_planned_is_lost(store: Store) -> None:
    store.write(FILES)

    class Expiring(CommitLog):
        def refresh(self) -> None:
            super().refresh()
            store.path(0).unlink(missing_ok=True)

    (first, *_) = LogPlanner(Expiring([store.path(0).parent], CONFIG), lambda: True).plan(0).ranges
    assert "expired" in first.gap
    assert (first.begin, first.end) == (0, FILE_SIZE)


def test_a_last_file_that_is_emptied_after_its_listing_is_damage(store: Store) -> None:
    store.write(FILES)
    planner = LogPlanner(CommitLog([store.store_root / "commitlog"], CONFIG), lambda: True)
    end = planner.end()
    os.truncate(store.path(LAST_BASE), 0)
    for _ in range(2):
        gap = planner.plan(LAST_BASE).ranges[-1]
        assert (gap.begin, gap.gap.partition(" bytes")[0]) == (LAST_BASE, "the file has 0")
    store.write(FILES)
    assert planner.end() == end
