"""A log scanned in splits yields the stretches of a walk, wherever it is split."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.commitlog.dispatch_request import DispatchRequests, concat
from store.commitlog.parallel_scan import Scanned, scan_in_order
from store.commitlog.planner import UNLIMITED
from store.commitlog.scanner import Damage
from store.config import StoreConfig
from store.errors import UnsupportedFormatError
from tests.conftest import Golden
from tests.logs.build import Batch, Message, build_log, encode, write_log
from tests.logs.random_logs import message_lists
from tests.logs.walking import by_walk, log_of
from tests.support.verify_stores import CONFIG, VARIANTS, flip, messages, write_store

FILE_SIZE = 8192


def by_splits(
    store_root: Path, config: StoreConfig, begin: int, batch_bytes: int, *, finds_end: bool = False
) -> tuple[list[DispatchRequests], Damage | None]:
    """Return the requests of the splits, which must be adjacent, and the damage.

    With ``finds_end``, the end of the log is only known after most of it, as in a rebuild.
    """
    _, planner = log_of(store_root, config)
    requests, damage, at = list[DispatchRequests](), None, begin

    def scan() -> Iterator[Scanned]:
        if finds_end:
            yield from scan_in_order(planner, config, (at, UNLIMITED), batch_bytes=batch_bytes)
        if damage is None:
            yield from scan_in_order(
                planner, config, (at, planner.end(at)), batch_bytes=batch_bytes
            )

    for stop, stretches in scan():
        assert damage is None
        for stretch in stretches:
            assert stretch.begin == at
            at = stretch.end
            if isinstance(stretch, Damage):
                damage = stretch
            else:
                requests.append(stretch)
        assert at == stop
    return requests, damage


def assert_same(
    store_root: Path, config: StoreConfig, batch_bytes: int, begin: int = 0
) -> tuple[list[DispatchRequests], Damage | None]:
    """Return what the splits yield; it must be what a walk does."""
    for finds_end in (False, True):
        requests, damage = by_splits(store_root, config, begin, batch_bytes, finds_end=finds_end)
        assert_equal(requests, damage, *by_walk(store_root, config, begin))
    return requests, damage


def assert_equal(
    requests: list[DispatchRequests],
    damage: Damage | None,
    walked: list[DispatchRequests],
    expected: Damage | None,
) -> None:
    assert (damage and (damage.begin, damage.reason, damage.path)) == (
        expected and (expected.begin, expected.reason, expected.path)
    )
    assert bool(requests) == bool(walked)
    if walked:
        one, other = concat(requests), concat(walked)
        assert (one.begin, one.end, len(one)) == (other.begin, other.end, len(other))
        for name in ("commit_log_offset", "size", "queue_offset", "tags_code", "key_hash"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        names = [(r.topics[q], int(r.queue_ids[q])) for r in requests for q in r.queue]
        assert names == [(r.topics[q], int(r.queue_ids[q])) for r in walked for q in r.queue]


@given(message_lists(), st.integers(100, 5_000), st.sampled_from(sorted(VARIANTS)), st.data())
@settings(max_examples=80, deadline=None)
def test_any_split_of_any_log_whole_or_damaged(
    sent: list[Message | Batch], batch_bytes: int, variant: str, data: st.DataObject
) -> None:
    config = replace(VARIANTS[variant], mapped_file_size_commit_log=FILE_SIZE)
    with TemporaryDirectory() as directory:
        store_root = Path(directory)
        files = build_log(sent, FILE_SIZE)
        write_log(files, store_root / "commitlog")
        assert_same(store_root, config, batch_bytes)
        path = data.draw(st.sampled_from(sorted((store_root / "commitlog").iterdir())))
        flip(path, data.draw(st.integers(0, FILE_SIZE - 1)))
        assert_same(store_root, config, batch_bytes)


@pytest.mark.parametrize("batch_bytes", [1_000, 40_000])
def test_every_real_log(golden: Golden, batch_bytes: int) -> None:
    log, _ = log_of(golden.store_root, golden.config)
    assert_same(golden.store_root, golden.config, batch_bytes, max(log.min_offset(), 0))


def test_a_copy_of_a_record_in_a_body_is_not_a_beginning(tmp_path: Path) -> None:
    first = messages(3)
    size = sum(len(encode(m, 0)) for m in first)
    room = replace(first[0], queue_offset=3, body=bytes(1_000))
    body_at = size + encode(room, size).index(room.body)
    inner = encode(Message(topic="Other", queue_offset=3, body=b"x" * 50), body_at + 300)
    body = bytes(300) + inner + bytes(700 - len(inner))
    rest = [replace(m, queue_offset=m.queue_offset + 4) for m in messages(20)]
    config = replace(CONFIG, mapped_file_size_commit_log=16_384)
    files = build_log([*first, replace(room, body=body), *rest], 16_384)
    write_log(files, tmp_path / "commitlog")
    for batch_bytes in range(150, 1_500, 10):
        requests, _ = assert_same(tmp_path, config, batch_bytes)
        assert {topic for r in requests for topic in r.topics} == {"TopicTest"}


def test_a_torn_tail_before_stale_data_is_not_scanned_as_a_record(tmp_path: Path) -> None:
    sent = messages(20)
    store_root = write_store(tmp_path, sent)
    end = by_walk(store_root, CONFIG, 0)[0][-1].end
    path = sorted((store_root / "commitlog").iterdir())[end // 4096]
    content = bytearray(path.read_bytes())
    content[end % 4096 - 5 : end % 4096] = bytes(5)  # of its properties: nothing protects them
    content[-100:] = b"\xff" * 100
    path.write_bytes(content)
    for batch_bytes in range(150, 1_500, 10):
        requests, _ = assert_same(store_root, CONFIG, batch_bytes)
        assert concat(requests).end < end


def test_a_record_larger_than_several_splits(tmp_path: Path) -> None:
    sent = [replace(m, body=b"y" * 1_500) for m in messages(20)]
    store_root = write_store(tmp_path, sent)
    for batch_bytes in (100, 700):
        assert_same(store_root, CONFIG, batch_bytes)


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_file_that_is_short_or_missing_ends_it(tmp_path: Path, is_missing: bool) -> None:
    store_root = write_store(tmp_path, messages(120))
    path = sorted((store_root / "commitlog").iterdir())[2]
    if is_missing:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:2_000])
    _, damage = assert_same(store_root, CONFIG, 900)
    assert damage is not None
    assert damage.begin == 2 * 4096


def test_an_inner_batch_is_reported_as_unsupported(tmp_path: Path) -> None:
    sent = messages(120)
    inner = replace(sent[50], sys_flag=sent[50].sys_flag | 1 << 7)
    store_root = write_store(tmp_path, [*sent[:50], inner, *sent[51:]])
    with pytest.raises(UnsupportedFormatError, match="an inner batch"):
        by_splits(store_root, CONFIG, 0, 900)


def test_only_records_before_the_end_of_a_span_are_scanned(tmp_path: Path) -> None:
    store_root = write_store(tmp_path, messages(120))
    _, planner = log_of(store_root, CONFIG)
    walked, _ = by_walk(store_root, CONFIG, 0)
    ends = concat(walked).commit_log_offset[[20, 77]]
    for end in map(int, ends):
        scanned = list(scan_in_order(planner, CONFIG, (0, end), batch_bytes=500))
        assert scanned[-1][0] == end
    assert list(scan_in_order(planner, CONFIG, (0, 0), batch_bytes=500)) == []
    assert planner.plan(0, until=UNLIMITED).end == planner.end()
