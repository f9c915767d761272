"""Retention deletes the files that a broker's rules expire, and no others."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from checkpoints.output import DispatchOutput
from store import MessageStore
from store.commitlog.commit_log import CommitLog
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from store.config import StoreConfig
from store.output.progress import read_progress
from streaming.queries.verify import verify
from streaming.sinks.dispatch_sink import DispatchSink
from tests.logs.build import Message, build_log, encode, write_log
from tests.support.cases import stride
from tests.support.crashes import Change, CrashingDisk, Killed
from tests.support.dispatching import (
    HastyDisk,
    assert_same_content,
    assert_same_store,
    built_tree,
    dispatch_all,
    tree,
)
from tests.support.stores.aged import expected_root, log_files, remove_expired, sent
from tests.support.verify_stores import CONFIG, EXT_CONFIG, VARIANTS, write_store


@pytest.fixture(params=VARIANTS)
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return VARIANTS[str(request.param)]


def test_expired_files_are_deleted_at_the_next_start(tmp_path: Path, config: StoreConfig) -> None:
    store, output = write_store(tmp_path, sent()), tmp_path / "output"
    dispatch_all(store, output, config)
    whole = tree(output / "consumequeue")
    while len(log_files(store)) > 1:
        log_files(store)[0].unlink()
        dispatch_all(store, output, config)
        assert_same_store(output, expected_root(tmp_path, config, int(log_files(store)[0].name)))
        result = verify(store, output, config)
        assert result.differences == ()
        progress = read_progress(output)
        assert progress is not None
        names = sorted(path.name for path in (output / "index").iterdir())
        assert (progress.index_first, progress.index_files) == (names[0], len(names))
    assert len(tree(output / "consumequeue")) < len(whole) / 2


def dispatch_while_it_expires(
    store: Path, output: Path, config: StoreConfig, *, keep_expired: bool = False
) -> None:
    """Dispatch batch by batch; after each, the oldest fully dispatched log file is deleted."""
    owned = DispatchOutput.open(output, store, config, disk=HastyDisk())
    with closing(DispatchSink(owned, config, keep_expired=keep_expired)) as sink:
        planner, scanner = LogPlanner(owned.log, lambda: True), Scanner(config)
        while ranges := planner.plan(owned.progress.reput_from_offset, max_bytes=3000).ranges:
            sink.apply([stretch for part in ranges for stretch in scanner.read(part)])
            names = [int(path.name) for path in log_files(store)]
            if len(names) > 1 and names[1] <= owned.progress.reput_from_offset:
                log_files(store)[0].unlink()


def test_expired_files_are_deleted_after_the_next_batch(
    tmp_path: Path, config: StoreConfig
) -> None:
    store, output = write_store(tmp_path, sent()), tmp_path / "output"
    dispatch_while_it_expires(store, output, config)
    dispatch_all(store, output, config)
    assert_same_store(output, expected_root(tmp_path, config, int(log_files(store)[0].name)))
    assert verify(store, output, config).differences == ()


def test_keep_expired_keeps_everything(tmp_path: Path, config: StoreConfig) -> None:
    store, output = write_store(tmp_path, sent()), tmp_path / "output"
    dispatch_while_it_expires(store, output, config, keep_expired=True)
    assert_same_store(output, expected_root(tmp_path, config, 0))
    dispatch_all(store, output, config, keep_expired=True)
    assert_same_store(output, expected_root(tmp_path, config, 0))
    assert verify(store, output, config).differences == ()


def test_a_queue_that_has_expired_keeps_its_end_and_resumes_there(tmp_path: Path) -> None:
    store, output = write_store(tmp_path, sent()), tmp_path / "output"
    dispatch_all(store, output, CONFIG)
    for path in log_files(store)[:-1]:
        path.unlink()
    dispatch_all(store, output, CONFIG)
    with MessageStore.open(store, output) as reads:
        assert reads.min_offset_in_queue("Old", 0) == reads.max_offset_in_queue("Old", 0) == 7
    assert [p.name for p in (output / "consumequeue/Old/0").iterdir()] == [f"{100:020}"]
    more = [*sent(), Message(topic="Old", queue_offset=7, body=b"7")]
    (name, content), *_ = sorted(build_log(more, 4096).items(), reverse=True)
    write_log({name: content}, store / "commitlog")
    dispatch_all(store, output, CONFIG)
    with MessageStore.open(store, output) as reads:
        assert (reads.min_offset_in_queue("Old", 0), reads.max_offset_in_queue("Old", 0)) == (7, 8)
        assert reads.get_message("Old", 0, 7).messages[0].body == b"7"


def test_an_empty_file_created_for_a_dropped_message_is_not_the_only_one_kept(
    tmp_path: Path,
) -> None:
    """A broker would keep only the empty file, and so the end; reads need a file with units."""
    first = [m for m in sent() if m.topic == "Old"][:5]
    again = Message(topic="Old", queue_offset=2)
    rest = [Message(queue_offset=n, body=b"b" * 200) for n in range(40)]
    store, output = write_store(tmp_path, [*first, again, *rest]), tmp_path / "output"
    dispatch_all(store, output, CONFIG)
    log_files(store)[0].unlink()
    dispatch_all(store, output, CONFIG)
    assert len(list((output / "consumequeue/Old/0").iterdir())) == 2
    assert verify(store, output, CONFIG).differences == ()
    with MessageStore.open(store, output) as reads:
        assert reads.max_offset_in_queue("Old", 0) == 5


def test_an_open_store_keeps_answering_while_files_expire(
    tmp_path: Path, config: StoreConfig
) -> None:
    store, output = write_store(tmp_path, sent()), tmp_path / "output"
    dispatch_all(store, output, config)
    with MessageStore.open(store, output) as reads:
        ends = {q: reads.max_offset_in_queue(q, 0) for q in ("Old", "Rare", "T")}
        while len(log_files(store)) > 1:
            log_files(store)[0].unlink()
            dispatch_all(store, output, config)
            for topic, end in ends.items():
                assert reads.max_offset_in_queue(topic, 0) == end
                begin = reads.min_offset_in_queue(topic, 0)
                found: list[int] = []
                while begin + len(found) < end:
                    read = reads.get_message(topic, 0, begin + len(found))
                    found += [m.queue_offset for m in read.messages]
                assert found == list(range(begin, end))
            offset = reads.min_offset_in_queue("T", 0)
            (first,) = reads.get_message("T", 0, offset, 1).messages
            (key, _) = (first.keys or "").split()
            assert [m.queue_offset for m in reads.query_message("T", key).messages] == [offset]
            assert reads.query_message("Old", "k0").messages == ()


# --- Interrupted -------------------------------------------------------------------------------


@pytest.fixture
def aged(tmp_path: Path, config: StoreConfig) -> tuple[Path, Path]:
    """Return a store, and an OUTPUT of its whole log, half of which has expired since."""
    store, output = write_store(tmp_path, sent()), tmp_path / "output"
    dispatch_all(store, output, config)
    for path in log_files(store)[:-2]:
        path.unlink()
    return store, output


def assert_no_hole(output: Path, config: StoreConfig) -> None:
    sizes = {
        "consumequeue": config.mapped_file_size_consume_queue,
        "consumequeue_ext": config.mapped_file_size_consume_queue_ext,
    }
    for kind, size in sizes.items():
        for directory in {p.parent for p in (output / kind).glob("*/*/*")}:
            bases = sorted(int(p.name) for p in directory.iterdir())
            assert bases == list(range(bases[0], bases[-1] + 1, size)), directory


def cut_off_outputs(aged: tuple[Path, Path], config: StoreConfig, step: int) -> Iterator[Path]:
    """Yield OUTPUT after a start that crashes at its first, second, … call."""
    store, output = aged
    copy = output.with_name("copy")
    for calls in range(0, 10_000, step):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(output, copy)
        disk = CrashingDisk(calls, output.with_name("graves"))
        if not is_killed(copy, store, config, disk):
            assert calls > 10
            return
        if calls % 2:  # power fails later, during the next process
            following = CrashingDisk(calls // 2 % 60, output.with_name("graves"))
            following.follow(disk)
            is_killed(copy, store, config, following)
            disk = following
        disk.lose(Random(calls), kept=calls % 3 / 2)
        yield copy


def is_killed(output: Path, store: Path, config: StoreConfig, disk: CrashingDisk) -> bool:
    """Start on a disk that may crash the process; return whether it did."""
    owned = None
    try:
        owned = DispatchOutput.open(output, store, config, disk=disk)
        DispatchSink(owned, config)
    except Killed:
        return True
    finally:
        if owned is not None:
            owned._release()
    return False


@stride(5)
def test_a_start_killed_at_any_call_leaves_no_hole_and_is_repeated(
    tmp_path: Path, aged: tuple[Path, Path], config: StoreConfig, stride: int
) -> None:
    store, _ = aged
    expected = expected_root(tmp_path, config, int(log_files(store)[0].name))
    step = 7 if config.mapped_file_size_consume_queue == 20 else 1  # there are many files
    for output in cut_off_outputs(aged, config, step * stride):
        assert_no_hole(output, config)
        with MessageStore.open(store, output) as reads:
            assert reads.max_offset_in_queue("Old", 0) == 7
            assert reads.query_message("T", "common", 9).truncated
        dispatch_all(store, output, config)
        assert_same_store(output, expected)
        assert verify(store, output, config).differences == ()


@pytest.mark.parametrize("config", [EXT_CONFIG], ids=["ext"])
def test_deletions_of_a_killed_process_may_be_lost_during_the_next_one(
    aged: tuple[Path, Path], config: StoreConfig
) -> None:
    store, output = aged
    killed, graves = output.with_name("killed"), output.with_name("graves")
    copy = output.with_name("copy")
    pending: list[Change] = []
    calls = 0
    while not any("consumequeue" in str(c.awaits) for c in pending):
        shutil.rmtree(killed, ignore_errors=True)
        shutil.copytree(output, killed)
        disk, calls = CrashingDisk(calls, graves), calls + 1
        assert is_killed(killed, store, config, disk)
        pending = disk.changes
    (path,) = {path for c in pending for path in c.awaits if "consumequeue" in str(path)}
    oldest = min((output / path.relative_to(killed)).iterdir())
    for calls in range(200):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(killed, copy)
        again = copy / path.relative_to(killed) / oldest.name
        change = Change({again.parent.resolve()}, lambda to=again: shutil.copy(oldest, to))
        disk = CrashingDisk(calls, graves)
        disk.changes = [change]
        was_killed = is_killed(copy, store, config, disk)
        disk.changes = [c for c in disk.changes if c is change]
        disk.lose(Random(0), kept=0)
        assert_no_hole(copy, config)
        if not was_killed:
            assert not again.exists()
            return
    raise AssertionError


def test_leftovers_are_deleted_even_if_expired_files_are_kept(tmp_path: Path) -> None:
    store, output = write_store(tmp_path, sent()), tmp_path / "output"
    dispatch_all(store, output, CONFIG)
    oldest = min((output / "index").iterdir())
    data = oldest.read_bytes()
    for path in log_files(store)[:-2]:
        path.unlink()
    dispatch_all(store, output, CONFIG)
    assert not oldest.exists()
    oldest.write_bytes(data)
    dispatch_all(store, output, CONFIG, keep_expired=True)
    assert not oldest.exists()


# --- Rollback afterwards ----------------------------------------------------------------------


def cut_log(store: Path, offset: int, last: Message) -> int:
    """Overwrite the log from an offset with another message, as a broker does; return its end."""
    log = CommitLog([store / "commitlog"], CONFIG)
    file = log.find(offset)
    assert file is not None
    data = bytearray(file.path.read_bytes())
    record = encode(last, offset)
    at = offset - file.base
    data[at:] = record + bytes(len(data) - at - len(record))
    for path in log_files(store):
        if int(path.name) > file.base:
            path.unlink()
    file.path.write_bytes(data)
    return offset + len(record)


def test_roll_back_works_on_an_aged_output(tmp_path: Path, config: StoreConfig) -> None:
    store, output = write_store(tmp_path, sent()), tmp_path / "output"
    dispatch_all(store, output, config, one_by_one=True)
    for path in log_files(store)[:-2]:
        path.unlink()
    dispatch_all(store, output, config)
    min_offset = int(log_files(store)[0].name)
    progress = read_progress(output)
    assert progress is not None
    usable = [p for p in progress.rollback_points if p.last_record.offset >= min_offset]
    assert len(usable) > 1
    at = usable[1].last_record
    end = cut_log(store, at.offset, Message(topic="New", body=b"other"))
    made = dispatch_all(store, output, config)
    assert made.reput_from_offset == end
    whole = write_store(tmp_path / "again", sent())
    cut_log(whole, at.offset, Message(topic="New", body=b"other"))
    dispatch_all(whole, tmp_path / "rebuilt", config)
    remove_expired(tmp_path / "rebuilt", config, min_offset)
    assert verify(store, output, config).differences == ()
    built, expected = built_tree(output), built_tree(tmp_path / "rebuilt")
    # A queue without units has no file then, as one that a broker truncates (§5.6).
    gone = {name for name in expected if name not in built}
    assert_same_content(built, {n: c for n, c in expected.items() if n not in gone})
    queues = {name.rpartition("/")[0] for name in gone if name.startswith("consumequeue/")}
    assert not queues & {name.rpartition("/")[0] for name in built}


def test_an_index_whose_newest_file_is_empty_is_equal_to_its_log(tmp_path: Path) -> None:
    """The file was created by the first message without keys after the previous file was full."""
    keyed = [Message(queue_offset=n, properties=[("KEYS", "a b")]) for n in range(6)]
    plain = [Message(queue_offset=n, body=b"b" * 300) for n in range(6, 40)]
    store, output = write_store(tmp_path, [*keyed, *plain]), tmp_path / "output"
    dispatch_all(store, output, CONFIG)
    assert len(list((output / "index").iterdir())) == 2
    log_files(store)[0].unlink()
    dispatch_all(store, output, CONFIG)
    assert len(list((output / "index").iterdir())) == 1
    assert verify(store, output, CONFIG).differences == ()


def test_ext_files_are_kept_while_a_live_unit_refers_to_them(tmp_path: Path) -> None:
    store, output = write_store(tmp_path, sent()), tmp_path / "output"
    dispatch_all(store, output, EXT_CONFIG)
    for path in log_files(store)[:-1]:
        path.unlink()
    dispatch_all(store, output, EXT_CONFIG)
    with MessageStore.open(store, output) as reads:
        begin = reads.min_offset_in_queue("T", 0)
        found = reads.get_message("T", 0, begin, tags="t0 || t1 || t2").messages
        assert [m.queue_offset for m in found][:1] == [begin]
