"""Planning the batches of a reader of damaged, expired and shortened logs."""

import shutil
from pathlib import Path

import pytest

from store.commitlog.commit_log import CommitLog
from store.commitlog.planner import LogPlanner
from store.commitlog.reader.log_batches import DataLoss, LogBatches
from store.commitlog.scanner import Damage, Scanner
from store.config import StoreConfig, load_config
from store.errors import DamageError, LostDataError, StoreError
from tests.support.stores.written import corrupt, make_store

FILE_SIZE = 65536
COUNT = 1_500  # four files


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store_root = tmp_path_factory.mktemp("whole") / "store"
    make_store(store_root, COUNT)
    return store_root


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def config_of(store: Path) -> StoreConfig:
    return load_config(store)


def batches_of(
    store: Path, data_loss: DataLoss = DataLoss.FAIL, *, is_clean: bool = True
) -> LogBatches:
    return LogBatches(
        store,
        config_of(store),
        is_clean=lambda: is_clean,
        range_bytes=8 * 1024,
        data_loss=data_loss,
    )


def offsets_of(store: Path) -> list[int]:
    config = config_of(store)
    plan = LogPlanner(CommitLog([store / "commitlog"], config), lambda: True).plan(0)
    return [o for p in plan.ranges for o in rows_of(config, p)]


def rows_of(config: StoreConfig, part: object) -> list[int]:
    found = Scanner(config).read(part, skip_damage=True)  # type: ignore[arg-type]
    return [int(o) for s in found if not isinstance(s, Damage) for o in s.commit_log_offset]


def read(log: LogBatches, store: Path, begin: int, end: int) -> list[int]:
    """Return the records that the tasks of a batch read."""
    return [o for part in log.ranges(begin, end) for o in rows_of(config_of(store), part)]


def file_of(store: Path, base: int) -> Path:
    return store / "commitlog" / f"{base:020d}"


def test_the_end_that_the_status_reports_takes_a_walk_from_the_planned_batch_only(
    store: Path,
) -> None:
    offsets, end = offsets_of(store), batches_of(store).end()
    base = offsets[-2] // FILE_SIZE * FILE_SIZE
    second = next(offset for offset in offsets if offset > base)
    log = batches_of(store, is_clean=False)
    assert second < log.next_end(0, offsets[-2]) < end
    with file_of(store, base).open("r+b") as f:
        f.seek(second - base)
        f.write(bytes(8))
    assert log.end() == end
    assert batches_of(store, is_clean=False).end() == second


@pytest.mark.parametrize(("at", "reason"), [(4, "magic"), (8, "CRC"), (35, "physical offset")])
@pytest.mark.parametrize("number", [1, 100, 700, 1_400])
def test_a_batch_ends_before_damage_and_the_next_one_raises_it(
    store: Path, number: int, at: int, reason: str
) -> None:
    offsets = offsets_of(store)
    bad = offsets[number]
    path = file_of(store, bad // FILE_SIZE * FILE_SIZE)
    corrupt(path, bad % FILE_SIZE + at)
    log = batches_of(store)
    end = log.next_end(0)
    assert end == bad
    assert read(log, store, 0, end) == offsets[:number]
    with pytest.raises(DamageError, match=f"at offset {bad}: .*{reason}") as caught:
        log.next_end(end)
    assert caught.value.path == path


def test_damage_of_a_records_properties_ends_a_batch_too(store: Path) -> None:
    offsets = offsets_of(store)
    bad = offsets[300]
    data = bytearray(file_of(store, 0).read_bytes())
    at = data.index(b"TopicA", bad)
    data[at : at + 6] = b"a/../b"  # no CRC covers it, only the scan detects it
    file_of(store, 0).write_bytes(data)
    log = batches_of(store)
    assert log.next_end(0) == offsets[300]
    with pytest.raises(DamageError, match="cannot name a directory"):
        log.next_end(bad)


def test_limits_hold_in_front_of_damage(store: Path) -> None:
    offsets = offsets_of(store)
    bad = offsets[1_200]
    corrupt(file_of(store, bad // FILE_SIZE * FILE_SIZE), bad % FILE_SIZE + 8)
    log = batches_of(store)
    at, seen = 0, []
    while at != bad:
        end = log.next_end(at, 20_000)
        assert 0 < end - at <= 21_000
        seen += read(log, store, at, end)
        at = end
    assert seen == offsets[:1_200]


@pytest.mark.parametrize("begin_at", [0, 300, 700])
def test_an_expired_part_of_a_logged_batch_is_lost_data(store: Path, begin_at: int) -> None:
    offsets = offsets_of(store)
    begin, stop = offsets[begin_at], offsets[1_100]
    for base in (0, FILE_SIZE):
        file_of(store, base).unlink()
    with pytest.raises(LostDataError) as caught:
        read(batches_of(store), store, begin, stop)
    gone = min(stop, 2 * FILE_SIZE)
    assert (caught.value.begin, caught.value.end) == (begin, gone)
    assert f"offsets {begin} to {gone} are lost" in str(caught.value)


@pytest.mark.parametrize("expired", [[0], [0, 1, 2], [1], [1, 2], [0, 1, 2, 3]])
@pytest.mark.parametrize(("first", "last"), [(0, 300), (300, 1_400)])
def test_an_expired_part_of_a_logged_batch_is_skipped_without_fail_on_data_loss(
    store: Path,
    caplog: pytest.LogCaptureFixture,
    expired: list[int],
    first: int,
    last: int,
) -> None:
    offsets = offsets_of(store)
    begin, stop = offsets[first], offsets[last]
    for number in expired:
        file_of(store, number * FILE_SIZE).unlink()
    log = batches_of(store, DataLoss.SKIP)
    kept = [o for o in offsets[first:last] if o // FILE_SIZE not in expired]
    assert read(log, store, begin, stop) == kept
    assert bool(caplog.messages) == (kept != offsets[first:last])
    for message in caplog.messages:
        assert " are left out: " in message
    after = log.next_end(stop)
    left = [o for o in offsets[last:] if o // FILE_SIZE not in expired]
    if left:
        assert after > left[-1]
        assert read(log, store, stop, after) == left


@pytest.mark.parametrize("data_loss", [DataLoss.FAIL, DataLoss.SKIP])
def test_damage_in_a_logged_batch_does_not_move_its_end(store: Path, data_loss: DataLoss) -> None:
    offsets = offsets_of(store)
    corrupt(file_of(store, 0), offsets[100] + 4)
    log = batches_of(store, data_loss)
    assert log.ranges(0, offsets[200])[-1].end == offsets[200]
    assert read(log, store, 0, offsets[200]) == offsets[:100] + offsets[101:200]


@pytest.mark.parametrize("data_loss", [DataLoss.FAIL, DataLoss.SKIP])
def test_a_shortened_log_is_lost_data(
    store: Path, caplog: pytest.LogCaptureFixture, data_loss: DataLoss
) -> None:
    offsets = offsets_of(store)
    end = offsets[700]
    for base in (2 * FILE_SIZE, 3 * FILE_SIZE):
        file_of(store, base).unlink()
    path = file_of(store, FILE_SIZE)
    data = path.read_bytes()
    path.write_bytes(data[: end - FILE_SIZE] + bytes(2 * FILE_SIZE - end))
    log, stop = batches_of(store, data_loss), offsets[1_300]
    if data_loss is DataLoss.FAIL:
        with pytest.raises(LostDataError, match=f"offsets {end} to {stop} are lost"):
            read(log, store, offsets[600], stop)
        with pytest.raises(LostDataError, match=f"offsets {end} to {stop} are lost"):
            log.next_end(stop)
        return
    assert read(log, store, offsets[600], stop) == offsets[600:700]
    assert log.next_end(stop) == stop
    assert log.next_end(stop) == stop
    assert [f"offsets {end} to {stop} are left out" in m for m in caplog.messages] == [True] * 2


def test_a_resume_inside_a_record_is_damage_or_skipped(store: Path) -> None:
    offsets = offsets_of(store)
    inside = offsets[50] + 10
    with pytest.raises(DamageError, match=f"at offset {inside}: .*the log changed"):
        read(batches_of(store), store, 0, inside)
    skipping = batches_of(store, DataLoss.SKIP)
    assert read(skipping, store, 0, inside) == offsets[:51]
    at, seen = inside, []
    while (end := skipping.next_end(at)) != at:
        seen += read(skipping, store, at, end)
        at = end
    assert seen == offsets[51:]


def test_a_loss_is_read_as_a_marker_if_markers_are_requested(store: Path) -> None:
    file_of(store, FILE_SIZE).unlink()
    log = batches_of(store, DataLoss.MARK)
    end = log.next_end(0)
    parts = log.ranges(0, end)
    (gap,) = [part for part in parts if part.gap]
    assert (gap.begin, gap.end, gap.is_lost) == (FILE_SIZE, 2 * FILE_SIZE, True)
    (lost,) = Scanner(config_of(store)).read(gap)
    assert isinstance(lost, Damage)
    error: StoreError = lost.error()
    assert isinstance(error, LostDataError)
    assert (error.begin, error.end) == (FILE_SIZE, 2 * FILE_SIZE)


def test_counting_what_waits_does_not_repeat_a_warning(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("store.commitlog.live_end._STALLED_SECONDS", 0.0)
    torn = offsets_of(store)[-3]
    name = f"{torn // FILE_SIZE * FILE_SIZE:020d}"
    corrupt(store / "commitlog" / name, torn % FILE_SIZE + 8)
    log = batches_of(store, DataLoss.MARK, is_clean=False)
    for _ in range(2):
        assert log.records_after(torn, 9_999).ranges == ()
        assert log.next_end(torn) == torn
    assert len([r for r in caplog.records if "valid records follow" in r.message]) == 1
