"""Links below ``consumequeue`` are refused by name: neither followed nor skipped."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkpoints.allowed_output import check_replaced
from reput.cli import run
from store import MessageStore
from store.consumequeue.names import list_queues
from store.errors import ConfigError, StoreIOError
from store.topics.overview import describe_topics
from streaming.queries.verify import verify
from tests.support.dispatching import dispatch_all
from tests.support.stores.numbered import CONFIG, make_store, numbered

LINKS = {
    "loop": ("a", "."),
    "second loop": ("T/b", "../../consumequeue"),
    "topic": ("Linked", "T"),
    "queue": ("T/1", "0"),
    "dangling": ("Unmounted", "/nowhere/else"),
}

LINK = "a symbolic link, which is not followed"


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    made = make_store(tmp_path / "store", numbered(20)), tmp_path / "out"
    dispatch_all(*made, CONFIG)
    return made


def ask_topics(directories: tuple[Path, Path]) -> object:
    with MessageStore.open(*directories) as s:
        return [s.queue_ids(topic) for topic in s.topics()]


def ask_queues(directories: tuple[Path, Path]) -> None:
    """Read the queues whose directories the links replace."""
    with MessageStore.open(*directories) as s:
        for topic, queue in (("a", 0), ("T/b", 0), ("Linked", 0), ("T", 1), ("Unmounted", 0)):
            s.get_message(topic, queue, 0)


WALKS: dict[str, Callable[[tuple[Path, Path]], object]] = {
    "list_queues": lambda directories: list(list_queues(directories[1])),
    "topics": ask_topics,
    "queues": ask_queues,
    "dispatch": lambda directories: dispatch_again(*directories),
}


def dispatch_again(store_root: Path, output: Path) -> None:
    """Make a dispatch adopt OUTPUT, which visits all queues."""
    (output / "checkpoint").write_bytes(bytes(4096))
    dispatch_all(store_root, output, CONFIG)


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("kind", LINKS)
def test_a_link_is_refused_by_name(directories: tuple[Path, Path], kind: str, walk: str) -> None:
    name, target = LINKS[kind]
    link = directories[1] / "consumequeue" / name
    link.symlink_to(target)
    with pytest.raises(StoreIOError, match="symbolic link") as raised:
        WALKS[walk](directories)
    assert raised.value.errno == errno.ELOOP
    assert raised.value.path == link
    link.unlink()
    WALKS[walk](directories)


@pytest.mark.parametrize("kind", LINKS)
def test_verify_reports_a_link(directories: tuple[Path, Path], kind: str) -> None:
    name, target = LINKS[kind]
    link = directories[1] / "consumequeue" / name
    link.symlink_to(target)
    found = verify(*directories, CONFIG).differences
    assert [(d.path, d.expected, d.actual) for d in found] == [(link, "no such file", LINK)]


READS: dict[str, Callable[[MessageStore], object]] = {
    "consumequeue/T/0": lambda s: s.get_message("T", 0, 0),
    "index": lambda s: s.query_message("T", "k", 1),
}


@pytest.mark.parametrize("name", READS)
def test_a_linked_file_is_refused(directories: tuple[Path, Path], name: str) -> None:
    path = min((directories[1] / name).iterdir())
    path.rename(directories[1] / "elsewhere")
    path.symlink_to(directories[1] / "elsewhere")
    found = verify(*directories, CONFIG).differences
    assert {(d.path, d.actual) for d in found} == {(path, LINK)}
    with (
        MessageStore.open(*directories) as s,
        pytest.raises(StoreIOError, match="is a symbolic link") as raised,
    ):
        READS[name](s)
    assert raised.value.path == path


def test_the_directory_that_is_walked_may_be_a_link(directories: tuple[Path, Path]) -> None:
    queues = directories[1] / "consumequeue"
    queues.rename(directories[1] / "elsewhere")
    queues.symlink_to("elsewhere")
    assert ask_topics(directories) == [[0]]


@pytest.fixture
def deep(directories: tuple[Path, Path]) -> Iterator[int]:
    """Nest directories deeper than the recursion limit."""
    at, made = directories[1] / "consumequeue", []
    for _ in range(1200):
        at /= "d"
        at.mkdir()
        made.append(at)
    yield len(made)
    for directory in reversed(made):
        os.rmdir(directory)


def test_directories_may_be_nested_deeper_than_calls(
    directories: tuple[Path, Path], deep: int
) -> None:
    assert list(list_queues(directories[1])) == [("T", 0)]
    assert ask_topics(directories) == [[0]]
    assert deep > 1000


@pytest.mark.parametrize("kind", LINKS)
def test_topics_lists_the_others(
    directories: tuple[Path, Path], kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    name, target = LINKS[kind]
    link = directories[1] / "consumequeue" / name
    link.symlink_to(target)
    assert run(["topics", str(directories[0]), "--output", str(directories[1]), "--json"]) == 6
    out, err = capfd.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    queues = [(r["topic"], r["queue_id"], r["max_offset"]) for r in rows if r["row"] == "queue"]
    assert queues == [("T", 0, 20)]
    assert err.count(f"{link}: it is a symbolic link") == 1


def test_topics_lists_the_others_where_a_file_is_a_link(
    directories: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(directories[1] / "consumequeue/T", directories[1] / "consumequeue/U")
    path = min((directories[1] / "consumequeue/T/0").iterdir())
    path.rename(directories[1] / "elsewhere")
    path.symlink_to(directories[1] / "elsewhere")
    with MessageStore.open(*directories) as s:
        overview = describe_topics(s)
    errors = {t.topic: str(q.damage or "") for t in overview.topics for q in t.queues}
    assert f"{path}: it is a symbolic link" in errors["T"]
    assert "U" in errors


@pytest.mark.parametrize("name", ["consumequeue/T/0", "index"])
def test_a_rebuild_names_a_linked_file_as_a_link(directories: tuple[Path, Path], name: str) -> None:
    path = min((directories[1] / name).iterdir())
    path.rename(directories[1] / "elsewhere")
    path.symlink_to(directories[1] / "elsewhere")
    with pytest.raises(ConfigError, match="is a symbolic link"):
        check_replaced(directories[1])
