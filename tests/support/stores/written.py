"""Stores of small files, written by this project's writer."""

from pathlib import Path

from store.commitlog.record import NewMessage, make_properties
from store.config import StoreConfig, config_from, load_config
from tests.support.bulk_writer import BulkWriter

TEMPLATES = [
    NewMessage("TopicA", 0, b"body ########", make_properties(uniq_key="U########", keys="k## a")),
    NewMessage("TopicA", 1, b"body ########" * 9, make_properties(keys="k##", tags="TagA")),
    NewMessage("TopicB", 0, b"z", make_properties(tags="TagB")),
]
CONF = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "97",
    "maxIndexNum": "900",
}


def small_config() -> StoreConfig:
    version = load_config(Path("none")).version
    return config_from(CONF, version=version, origin="test")


def make_store(store_root: Path, count: int) -> StoreConfig:
    """Write a cleanly closed log of `count` messages and its broker.conf."""
    config = small_config()
    with BulkWriter(store_root, config) as writer:
        writer.append_many(TEMPLATES, count)
    (store_root / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in CONF.items()))
    return config


def corrupt(path: Path, at: int) -> None:
    """Flip one bit."""
    with path.open("r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))
