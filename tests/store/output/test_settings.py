"""The settings of a store: what is given, recorded, seen from the files, or a default."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from store.config import StoreConfig
from store.errors import ConfigError, DamageError
from store.layout import INDEX_DIR
from store.output.resolve_config import config_to_compare, find_config, open_store_config
from store.reads.message_store import MessageStore
from streaming.queries.rebuild import rebuild_output, take_output
from tests.support.bulk_writer import BulkWriter
from tests.support.stores.written import CONF, TEMPLATES, make_store, small_config

COUNT = 1500  # rolls the log, the queues and the index


def make(store_root: Path, count: int = COUNT) -> Path:
    """Write a store whose broker.conf is elsewhere; return that."""
    make_store(store_root, count)
    return (store_root / "broker.conf").rename(store_root.parent / f"{store_root.name}.conf")


def with_queues(store_root: Path) -> Path:
    """Build a broker's own queues and index in a store; return its broker.conf, elsewhere."""
    conf = make(store_root)
    built = store_root.parent / "built"
    rebuild_output(take_output(store_root, built, conf, None))
    for name in ("consumequeue", "index"):
        shutil.copytree(built / name, store_root / name)
    return conf


def sizes(config: StoreConfig) -> dict[str, int]:
    return {
        "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
        "maxHashSlotNum": config.max_hash_slot_num,
        "maxIndexNum": config.max_index_num,
    }


OWN = {name: int(value) for name, value in CONF.items()}


def test_files_show_the_settings_that_nothing_else_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    with_queues(store)
    for _ in range(2):
        assert sizes(find_config(store, store, None, None)) == OWN
    assert sizes(config_to_compare(store, tmp_path / "new", None, None)) == OWN
    (said,) = {record.getMessage() for record in caplog.records}
    assert len(caplog.records) == 1
    assert f"{store}: assumed from" in said
    assert "mappedFileSizeCommitLog=65536" in said


def test_a_broker_conf_that_lacks_sizes_is_completed_from_the_files(tmp_path: Path) -> None:
    store, conf = tmp_path / "store", tmp_path / "flags.conf"
    with_queues(store)
    conf.write_text("enableLmq=true\nmaxHashSlotNum=97\n")
    found = find_config(store, store, conf, None)
    assert found.enable_lmq
    assert sizes(found) == OWN


def test_a_broker_conf_in_the_store_is_read_where_none_is_given(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    (store / "broker.conf").write_text("maxIndexNum=1234\n")
    assert find_config(store, store, None, None).max_index_num == 1234
    other = tmp_path / "other.conf"
    other.write_text("maxIndexNum=99\n")
    assert find_config(store, store, other, None).max_index_num == 99


def test_progress_precedes_the_files(tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    conf = with_queues(store)
    conf.write_text(conf.read_text().replace("=2000", "=4000"))
    rebuild_output(take_output(store, output, conf, None))
    for config in (
        find_config(store, output, None, None),
        config_to_compare(store, output, None, None),
    ):
        assert sizes(config) == OWN | {"mappedFileSizeConsumeQueue": 4000}


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("mappedFileSizeCommitLog", "131072"),
        ("mappedFileSizeCommitLog", "32768"),
        ("mappedFileSizeConsumeQueue", "4000"),
        ("maxHashSlotNum", "98"),
        ("maxIndexNum", "901"),
    ],
)
def test_a_given_setting_that_all_files_contradict_is_refused(
    tmp_path: Path, setting: str, wrong: str
) -> None:
    store = tmp_path / "store"
    conf = with_queues(store)
    conf.write_text(conf.read_text().replace(f"{setting}={CONF[setting]}", f"{setting}={wrong}"))
    with pytest.raises(ConfigError, match=f"--broker-conf {conf}: {setting}={wrong}, but"):
        find_config(store, store, conf, None)
    shutil.copy(conf, store / "broker.conf")
    with pytest.raises(ConfigError, match=f"^{store}/broker.conf: {setting}={wrong}, but"):
        config_to_compare(store, store, None, None)
    if setting != "mappedFileSizeCommitLog":  # files that are not made yet may be others
        new = open_store_config(store, tmp_path / "new", None, None, needs_log=True)
        assert sizes(new)[setting] == int(wrong)


def test_reads_of_the_log_alone_take_any_settings_of_queues(tmp_path: Path) -> None:
    store = tmp_path / "store"
    conf = with_queues(store)
    conf.write_text("mappedFileSizeConsumeQueue=4000\nmaxIndexNum=7\n")
    assert sizes(find_config(store, None, conf, None))["mappedFileSizeCommitLog"] == 65536


@pytest.mark.parametrize("number", [0, 1, -1])
def test_one_file_of_another_size_is_damage(tmp_path: Path, number: int) -> None:
    store = tmp_path / "store"
    make(store)
    odd = sorted((store / "commitlog").iterdir())[number]
    os.truncate(odd, 50_000)
    config = find_config(store, None, None, None)
    assert config.mapped_file_size_commit_log == 65536
    with MessageStore.open(store) as s, pytest.raises(DamageError, match=odd.name):
        s.look_message_by_offset(int(odd.name))


def test_a_preallocated_second_file_shows_the_size(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make(store, 10)
    with (store / "commitlog" / f"{65536:020d}").open("wb") as f:
        f.truncate(65536)
    with MessageStore.open(store) as s:
        assert s.look_message_by_offset(0) is not None
        assert s.max_phy_offset() < 65536


def test_a_file_alone_shows_the_size_unless_it_ends_within_a_record(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make(store, 10)
    (only,) = (store / "commitlog").iterdir()
    config = find_config(store, None, None, None)
    assert config.mapped_file_size_commit_log == 65536
    with MessageStore.open(store) as s:
        end = s.max_phy_offset()
    os.truncate(only, end - 20)  # a copy that was cut off
    assert find_config(store, None, None, None).mapped_file_size_commit_log == 1 << 30
    with MessageStore.open(store) as s, pytest.raises(DamageError, match="--broker-conf"):
        s.look_message_by_offset(0)


def test_files_on_several_paths_show_one_size(tmp_path: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "disk2"
    make(store)
    other.mkdir()
    for path in sorted((store / "commitlog").iterdir())[1::2]:
        path.rename(other / path.name)
    conf = tmp_path / "paths.conf"
    conf.write_text(f"storePathCommitLog={store}/commitlog,{other}\n")
    config = find_config(store, None, conf, None)
    assert config.mapped_file_size_commit_log == 65536
    with MessageStore.open(store, broker_conf=conf) as s:
        assert not s.missing_files()


def test_an_empty_index_leaves_its_numbers_open(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with_queues(store)
    for path in (store / INDEX_DIR).iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    config = find_config(store, store, None, None)
    assert (config.max_hash_slot_num, config.max_index_num) == (5_000_000, 20_000_000)


def test_an_output_without_a_file_follows_the_log_that_appears(tmp_path: Path) -> None:
    """A dispatch that waited for a new broker recorded the defaults, which no file depends on."""
    from checkpoints.output import DispatchOutput

    store, output = tmp_path / "store", tmp_path / "out"
    (store / "commitlog").mkdir(parents=True)
    config = open_store_config(store, output, None, None, needs_log=False)
    assert config.mapped_file_size_commit_log == 1 << 30
    DispatchOutput.open(output, store, config).close(clean=True)
    with BulkWriter(store, replace(small_config())) as writer:
        writer.append_many(TEMPLATES, COUNT)
    config = open_store_config(store, output, None, None, needs_log=True)
    assert config.mapped_file_size_commit_log == 65536
    DispatchOutput.open(output, store, config).close(clean=True)


def test_the_compose_files_broker_is_read_without_its_broker_conf(tmp_path: Path) -> None:
    conf = Path(__file__).parents[3] / "compose" / "broker.conf"
    store = tmp_path / "store"
    config = replace(small_config(), mapped_file_size_commit_log=67108864)
    with BulkWriter(store, config) as writer:
        writer.append_many(TEMPLATES, 10)
    with (store / "commitlog" / f"{67108864:020d}").open("wb") as f:
        f.truncate(67108864)
    shown = find_config(store, store, None, None)
    assert shown.mapped_file_size_commit_log == 67108864
    given = find_config(store, store, conf, None)
    assert given.mapped_file_size_commit_log == shown.mapped_file_size_commit_log
