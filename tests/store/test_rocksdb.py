"""Stores of brokers that keep queues or committed offsets in RocksDB: read but for those."""

import shutil
from pathlib import Path

import pytest

from reput.cli import run
from store import MessageStore
from store.broker_files import read_consumer_offsets, read_topic_configs
from store.config import load_config
from store.errors import ConfigError, UnsupportedFormatError
from store.output.resolve_config import open_store_config
from store.rocksdb import rocksdb_queues
from tests.support.dispatching import dispatch_all
from tests.support.stores.rocksdb import make_rocksdb
from tests.support.stores.written import make_store

COUNT = 60
TWICE = "rocksdbCQDoubleWriteEnable=true"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store whose queues are in RocksDB, as its files show."""
    make_store(tmp_path / "store", COUNT)
    make_rocksdb(tmp_path / "store" / "consumequeue")
    return tmp_path / "store"


@pytest.fixture
def written_twice(tmp_path: Path) -> Path:
    """Return a store that has its queues in files and in RocksDB."""
    store_root = tmp_path / "store"
    config = make_store(store_root, COUNT)
    dispatch_all(store_root, tmp_path / "built", config)
    for kind in ("consumequeue", "index"):
        shutil.copytree(tmp_path / "built" / kind, store_root / kind)
    make_rocksdb(store_root / "consumequeue")
    return store_root


def add_conf(store: Path, *lines: str) -> None:
    with (store / "broker.conf").open("a") as conf:
        conf.write("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, ""),
        ({"storeType": "default"}, ""),
        ({"storeType": "defaultRocksDB"}, "storeType=defaultRocksDB"),
        ({"storeType": " defaultrocksdb "}, "storeType=defaultrocksdb"),
        ({"rocksdbCQDoubleWriteEnable": "true"}, ""),
        (
            {
                "rocksdbCQDoubleWriteEnable": "true",
                "combineCQLoadingCQTypes": "default;defaultRocksDB",
            },
            "",
        ),
        (
            {"rocksdbCQDoubleWriteEnable": "true", "combineCQLoadingCQTypes": "defaultRocksDB"},
            "combineCQLoadingCQTypes=defaultRocksDB",
        ),
        (
            {"rocksdbCQDoubleWriteEnable": "true", "combineCQUseRocksdbForLmq": "true"},
            "combineCQUseRocksdbForLmq=true",
        ),
        ({"combineCQUseRocksdbForLmq": "true"}, ""),
    ],
)
def test_the_settings_that_move_queues(tmp_path: Path, values: dict[str, str], reason: str) -> None:
    assert rocksdb_queues(tmp_path, values) == reason


@pytest.mark.parametrize("name", ["consumequeue", "consumequeue_rocksdb"])
def test_a_rocksdb_is_detected_by_its_files(tmp_path: Path, name: str) -> None:
    make_rocksdb(tmp_path / name)
    assert rocksdb_queues(tmp_path, {}).startswith(f"{name} is a RocksDB")
    assert rocksdb_queues(tmp_path, {"rocksdbCQDoubleWriteEnable": "true"}) == ""


def test_queues_in_rocksdb_are_refused_by_each_read_and_the_log_is_read(store: Path) -> None:
    with MessageStore.open(store) as s:
        message = s.look_message_by_offset(0)
        assert message is not None
        for read in (
            s.topics,
            lambda: s.queue_ids("TopicA"),
            lambda: s.get_message("TopicA", 0, 0),
            lambda: s.max_offset_in_queue("TopicA", 0),
            lambda: s.offset_in_queue_by_time("TopicA", 0, 0),
            lambda: s.place_in_queue(message),
        ):
            with pytest.raises(UnsupportedFormatError, match="consume queues are in RocksDB"):
                read()


def test_queues_built_from_the_log_are_read(store: Path, tmp_path: Path) -> None:
    assert run(["rebuild", str(store), "--output", str(tmp_path / "out")]) == 0
    with MessageStore.open(store, tmp_path / "out") as s:
        assert s.topics() == ["TopicA", "TopicB"]
        assert s.get_message("TopicA", 0, 0).messages
    assert run(["verify", str(store), "--output", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize(
    "command",
    [["verify"], ["rebuild", "--output"], ["recover", "--output"], ["dispatch", "--output"]],
)
def test_output_may_not_be_the_store(
    store: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(store.rglob("*"))
    name, *option = command
    assert run([name, str(store), *(value for o in option for value in (o, str(store)))]) == 5
    assert "consumequeue is a RocksDB" in capsys.readouterr().err
    assert sorted(store.rglob("*")) == before


def test_a_copy_of_such_a_store_is_no_output(store: Path, tmp_path: Path) -> None:
    make_rocksdb(tmp_path / "copy" / "consumequeue")
    with pytest.raises(UnsupportedFormatError, match="copy: the consume queues are in RocksDB"):
        open_store_config(store, tmp_path / "copy", None, None, needs_log=True)


def test_queues_written_twice_are_read_if_broker_conf_says_so(
    written_twice: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topics", str(written_twice)]) == 5
    add_conf(written_twice, TWICE)
    assert run(["topics", str(written_twice)]) == 0
    assert run(["verify", str(written_twice)]) == 0
    capsys.readouterr()
    assert run(["recover", str(written_twice), "--output", str(written_twice)]) == 5
    assert TWICE in capsys.readouterr().err
    (written_twice / "consumequeue" / "stray").write_bytes(b"x")
    assert run(["verify", str(written_twice)]) == 1


def test_index_files_that_are_off_are_not_built(store: Path, tmp_path: Path) -> None:
    add_conf(store, "indexRocksDBEnable=true", "indexFileWriteEnable=false")
    assert not load_config(store).message_index_enable
    assert run(["rebuild", str(store), "--output", str(tmp_path / "out")]) == 0
    assert not (tmp_path / "out" / "index").exists()
    with (
        MessageStore.open(store, tmp_path / "out") as s,
        pytest.raises(ConfigError, match="indexFileWriteEnable=false"),
    ):
        s.query_message("TopicA", "k1")


def test_topics_and_committed_offsets_in_rocksdb_are_named(store: Path) -> None:
    config = store / "config"
    make_rocksdb(config / "topics")
    make_rocksdb(config / "consumerOffsets")
    for read, name in ((read_topic_configs, "topics"), (read_consumer_offsets, "consumerOffsets")):
        file = read(store)
        assert file.content is None
        assert file.problem == f"{config / name} is a RocksDB, which is not read"
    (config / "consumerOffset.json").write_text('{"offsetTable":{"T@G":{0:5}}}')
    offsets = read_consumer_offsets(store)
    assert [c.offset for c in offsets.content or ()] == [5]
    assert offsets.problem.endswith("which is not read; consumerOffset.json may be older")
