"""Records that are not copied: their messages read as those of others, from the map of the file."""

import os
import pickle
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.commitlog.commit_log import CommitLog
from store.commitlog.message import COPIED_MAX, Message
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.writer import CommitLogWriter
from store.config import StoreConfig, config_from, load_config
from store.errors import VanishedError
from store.layout import SYS_COMPRESSED
from store.reads.message_store import MessageStore

MEBIBYTE = 1 << 20
BODY = b"some words " * (24 * MEBIBYTE // 11)
INCOMPRESSIBLE = os.urandom(2 * MEBIBYTE)
_CONF = {"mappedFileSizeCommitLog": str(32 * MEBIBYTE), "enabledAppendPropCRC": "true"}


def config() -> StoreConfig:
    return config_from(_CONF, version=load_config(Path("none")).version, origin="test")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write a small, a large and a compressed message; the large one ends its file."""
    with CommitLogWriter(tmp_path, config()) as writer:
        for body, flag in (
            (b"small", 0),
            (BODY, 0),
            (zlib.compress(INCOMPRESSIBLE), SYS_COMPRESSED),
            (INCOMPRESSIBLE, SYS_COMPRESSED),  # flagged wrongly
        ):
            writer.append(NewMessage("T", 1, body, make_properties(tags="A", k="v"), sys_flag=flag))
    return tmp_path


def messages(root: Path) -> Iterator[Message]:
    log = CommitLog(config().commit_log_paths(root), config())
    at = 0
    while (found := log.find_message(at)) is not None:
        yield found
        at += found.size


def test_a_large_record_has_the_parts_of_any_other(root: Path) -> None:
    small, large, packed, wrong = messages(root)
    assert [m.body for m in (small, large, packed, wrong)] == [
        b"small", BODY, INCOMPRESSIBLE, INCOMPRESSIBLE,
    ]  # fmt: skip
    assert large.size > COPIED_MAX
    assert (large.topic, large.queue_id, large.tags) == ("T", 1, "A")
    assert large.properties["k"] == "v"
    assert large.raw_body == BODY
    assert b"".join(large.body_pieces()) == BODY
    assert (large.body_pieces().size, large.body_head(9)) == (len(BODY), BODY[:9])
    assert b"".join(packed.body_pieces()) == INCOMPRESSIBLE
    assert packed.body_head(9) == wrong.body_head(9) == INCOMPRESSIBLE[:9]
    again = list(messages(root))[1]
    assert (large, hash(large)) == (again, hash(again))
    assert large != packed
    assert pickle.loads(pickle.dumps(large)).body == BODY


def test_a_read_of_a_large_record_takes_little_memory(root: Path) -> None:
    with MessageStore(root, root, config()) as store:
        tracemalloc.start()
        try:
            found = store.look_message_by_offset(next(messages(root)).size)
            assert found is not None
            assert found.body_head(5) == b"some "
            assert sum(map(len, found.body_pieces())) == len(BODY)
            assert tracemalloc.get_traced_memory()[1] < 3 * MEBIBYTE
        finally:
            tracemalloc.stop()
    assert found.body == BODY  # the map outlives the store


def test_a_body_that_vanished_is_an_error(root: Path) -> None:
    _, large, packed, wrong = messages(root)
    for path in (root / "commitlog").iterdir():
        os.truncate(path, 4096)
    for message in (large, packed, wrong):
        for read in (Message.read_body, lambda m: list(m.body_pieces())):
            with pytest.raises(VanishedError):
                read(message)
