"""The rebuild of a whole OUTPUT: the bytes of a dispatch, however the log is cut."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints.output import DispatchOutput
from checkpoints.state_paths import BULK_DIR
from store import MessageStore
from store.config import StoreConfig
from store.errors import ConfigError, DamageError, OutputInUseError
from store.output.progress import read_progress
from streaming.queries.verify import verify
from tests.conftest import Golden
from tests.logs.build import Batch, Message, build_log, write_log
from tests.logs.random_logs import message_lists
from tests.support.cases import first_cases
from tests.support.dispatching import (
    HastyDisk,
    assert_same_store,
    built_tree,
    dispatch_all,
)
from tests.support.rebuilding import rebuild_all
from tests.support.stores.aged import log_files, sent
from tests.support.stores.golden import WITH_UNKNOWN_MAGIC, golden_slice
from tests.support.verify_stores import CONFIG, VARIANTS, flip, messages, write_store

MANY = 1_000_000


@pytest.fixture(params=list(VARIANTS))
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return VARIANTS[str(request.param)]


@pytest.fixture
def directories(tmp_path: Path, config: StoreConfig) -> tuple[Path, Path, Path]:
    """Return a store, an OUTPUT that does not exist yet, and an OUTPUT written by a dispatch."""
    store_root, dispatched = write_store(tmp_path, sent(60)), tmp_path / "dispatched"
    dispatch_all(store_root, dispatched, config)
    return store_root, tmp_path / "output", dispatched


@golden_slice
@pytest.mark.parametrize("batch_bytes", first_cases([5_000, 1 << 20]))
def test_every_real_store_is_rebuilt_byte_for_byte(
    golden: Golden, tmp_path: Path, batch_bytes: int
) -> None:
    rebuilt = rebuild_all(golden.store_root, tmp_path, golden.config, batch_bytes=batch_bytes)
    assert_same_store(tmp_path, golden.expected)
    assert (rebuilt.damage is not None) == (golden.name == WITH_UNKNOWN_MAGIC)
    assert not (tmp_path / BULK_DIR).exists()
    assert not (tmp_path / "abort").exists()


LOGS = given(message_lists(), st.integers(200, 3_000), st.sampled_from(sorted(VARIANTS)))


@LOGS
@settings(max_examples=12, deadline=None)
def test_any_cut_of_any_log_gives_the_files_of_a_dispatch(
    sent: list[Message | Batch], batch_bytes: int, variant: str
) -> None:
    assert_any_cut_gives_the_files_of_a_dispatch(sent, batch_bytes, variant)


@pytest.mark.exhaustive
@LOGS
@settings(max_examples=100, deadline=None)
def test_any_cut_of_any_log_gives_the_files_of_a_dispatch_many_times(
    sent: list[Message | Batch], batch_bytes: int, variant: str
) -> None:
    assert_any_cut_gives_the_files_of_a_dispatch(sent, batch_bytes, variant)


def assert_any_cut_gives_the_files_of_a_dispatch(
    sent: list[Message | Batch], batch_bytes: int, variant: str
) -> None:
    config = replace(VARIANTS[variant], mapped_file_size_commit_log=8192)
    with TemporaryDirectory() as directory:
        store_root = Path(directory) / "store"
        write_log(build_log(sent, 8192), store_root / "commitlog")
        dispatched, output = Path(directory) / "dispatched", Path(directory) / "output"
        error = None
        try:
            dispatch_all(store_root, dispatched, config)
        except DamageError as e:
            error = e
        rebuilt = rebuild_all(store_root, output, config, batch_bytes=batch_bytes)
        assert_same_store(output, dispatched)
        damage = rebuilt.damage.error() if rebuilt.damage is not None else None
        assert (damage and (damage.offset, damage.reason)) == (
            error and (error.offset, error.reason)
        )
        known, now = read_progress(dispatched), read_progress(output)
        assert known is not None
        assert now is not None
        for name in ("reput_from_offset", "last_record", "messages", "index_count", "index_files"):
            assert getattr(now, name) == getattr(known, name), name
        drops = {name: d for name, d in known.drops.items() if any(d.values())}
        assert now.drops == drops


def test_the_log_before_damage_is_built_and_the_damage_reported(
    directories: tuple[Path, Path, Path], config: StoreConfig, tmp_path: Path
) -> None:
    store_root, output, _ = directories
    flip(log_files(store_root)[2], 100)  # a byte of a body
    with pytest.raises(DamageError) as raised:
        dispatch_all(store_root, tmp_path / "prefix", config)
    rebuilt = rebuild_all(store_root, output, config, batch_bytes=MANY)
    assert rebuilt.damage is not None
    assert str(rebuilt.damage.error()) == str(raised.value)
    assert_same_store(output, tmp_path / "prefix")
    flip(log_files(store_root)[2], 100)  # the file is restored
    dispatch_all(store_root, output, config)
    assert_same_store(output, directories[2])


def test_a_missing_file_in_the_middle_of_the_log_is_damage(tmp_path: Path) -> None:
    store_root, output = write_store(tmp_path, messages(60)), tmp_path / "output"
    log_files(store_root)[1].unlink()
    rebuilt = rebuild_all(store_root, output, CONFIG)
    assert rebuilt.damage is not None
    assert (rebuilt.begin_offset, rebuilt.end_offset) == (0, 4096)


def test_a_torn_record_followed_by_older_records_ends_the_log_while_abort_exists(
    tmp_path: Path,
) -> None:
    store_root = write_store(tmp_path, messages(40))
    (store_root / "abort").touch()
    flip(log_files(store_root)[-1], 100)
    rebuilt = rebuild_all(store_root, tmp_path / "output", CONFIG)
    dispatch_all(store_root, tmp_path / "dispatched", CONFIG)
    assert rebuilt.damage is None
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")


def test_queues_of_an_expired_log_are_filled_up_to_their_first_unit(
    directories: tuple[Path, Path, Path], config: StoreConfig, tmp_path: Path
) -> None:
    store_root, output, _ = directories
    for path in log_files(store_root)[:2]:
        path.unlink()
    dispatch_all(store_root, tmp_path / "aged", config)
    rebuild_all(store_root, output, config)
    assert_same_store(output, tmp_path / "aged")
    assert verify(store_root, output, config).is_equal


def test_a_dispatch_resumes_after_a_rebuild_without_recovery(
    config: StoreConfig, tmp_path: Path
) -> None:
    sent_in_all = sent(60)
    store_root, output = write_store(tmp_path, sent_in_all[:35]), tmp_path / "output"
    rebuild_all(store_root, output, config)
    shutil.rmtree(store_root)
    write_store(tmp_path, sent_in_all)
    owned = DispatchOutput.open(output, store_root, config)
    assert owned.recovered == ()
    owned.close(clean=True)
    dispatch_all(store_root, output, config)
    dispatch_all(store_root, tmp_path / "dispatched", config)
    assert_same_store(output, tmp_path / "dispatched")


def test_a_broker_s_output_is_rebuilt_in_place(config: StoreConfig, tmp_path: Path) -> None:
    store_root = write_store(tmp_path, sent(60))
    dispatch_all(store_root, tmp_path / "dispatched", config)
    shutil.copytree(tmp_path / "dispatched/consumequeue", store_root / "consumequeue")
    shutil.copytree(store_root / "consumequeue/T", store_root / "consumequeue/Stale")
    (store_root / "abort").touch()
    rebuild_all(store_root, store_root, config)
    assert_same_store(store_root, tmp_path / "dispatched")


def test_a_broker_crash_after_a_rebuild_leaves_a_torn_tail_not_damage(tmp_path: Path) -> None:
    store_root = write_store(tmp_path, messages(40))
    rebuild_all(store_root, store_root, CONFIG)
    assert not (store_root / "abort").exists()
    (store_root / "abort").touch()  # a broker ran, and was killed while it wrote
    flip(log_files(store_root)[-1], 100)
    assert rebuild_all(store_root, store_root, CONFIG).damage is None


def test_readers_keep_answering_while_an_output_is_replaced(tmp_path: Path) -> None:
    directories, config = (write_store(tmp_path, sent(60)), tmp_path / "output"), CONFIG
    dispatch_all(*directories, config)
    wrong: list[object] = []
    stop = threading.Event()

    def answers(reads: MessageStore) -> tuple[list[int], list[int]]:
        found = reads.query_message("T", "common", max_count=64).messages
        got = reads.get_message("T", 0, 5, max_count=8).messages
        return [m.queue_offset for m in found], [m.queue_offset for m in got]

    with MessageStore.open(*directories) as reads:
        right = answers(reads)
        assert len(right[0]) > 20

        def read() -> None:
            while not stop.is_set():
                try:
                    found: object = answers(reads)
                except Exception as e:  # noqa: BLE001 - no exception is expected
                    found = e
                if found != right:
                    wrong.append(found)

        thread = threading.Thread(target=read)
        thread.start()
        for _ in range(12):
            rebuild_all(*directories, config, disk=HastyDisk())
        stop.set()
        thread.join()
    assert wrong == []


def test_an_output_that_cannot_be_rebuilt_is_refused_and_unchanged(
    directories: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    store_root, _, dispatched = directories
    config = CONFIG
    other = write_store(tmp_path / "elsewhere", messages(5))
    before = built_tree(dispatched)
    with pytest.raises(ConfigError, match="was made from"):
        rebuild_all(other, dispatched, config)
    with pytest.raises(ConfigError, match="a log of its own"):
        rebuild_all(store_root, other, config)
    shutil.rmtree(tmp_path / "linked", ignore_errors=True)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/consumequeue").symlink_to(dispatched / "consumequeue")
    with pytest.raises(ConfigError, match="is a link"):
        rebuild_all(store_root, tmp_path / "linked", config)
    owned = DispatchOutput.replacing(tmp_path / "taken", store_root, config)
    with pytest.raises(OutputInUseError):
        rebuild_all(store_root, tmp_path / "taken", config)
    owned.close(clean=False)
    assert built_tree(dispatched) == before
