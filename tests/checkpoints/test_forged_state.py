"""State files with a valid checksum and any content raise StoreErrors, and never reach outside."""

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoints.output import DispatchOutput
from store import MessageStore
from store.commitlog.commit_log import CommitLog
from store.errors import DamageError, StoreError
from store.output.dispatch_status import read_dispatch_status
from store.output.resolve_config import config_to_compare
from streaming.queries.verify import verify
from tests.checkpoints.conftest import CONFIG, FILES
from tests.logs.build import write_log
from tests.support.dispatching import HastyDisk, built_tree, dispatch_all
from tests.support.rebuilding import fail_after, rebuild_all

STATE_FILES = ("progress", "batch", "swap", "bulk/new/reput/progress", "bulk/new/reput/batch")
NAMES = [
    "..",
    "../zz",
    "../../store",
    "/etc",
    "commitlog",
    "",
    "a\0b",
    "\ud800",
    "x" * 300,
    "index",
]
NUMBERS = [-(2**63) - 1, -(2**63), -1, 0, 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 10**30]
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from(NUMBERS),
        st.sampled_from(NAMES),
        st.integers(),
        st.text(max_size=20),
        st.floats(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


def sealed(line: bytes) -> bytes:
    """Return a state file: a line with a valid checksum."""
    return line + b"\n%08x\n" % zlib.crc32(line)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a JSON value."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict | list):
            yield from places(item, (*at, key))
        else:
            yield (*at, key)


def changed(value: Any, at: tuple[Any, ...], to: Any) -> Any:
    """Return a JSON value with the value at a path replaced."""
    if not at:
        return to
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = changed(value[at[0]], at[1:], to)
    return copy


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a store and an OUTPUT that has every state file."""
    directory = tmp_path_factory.mktemp("made")
    store, output = directory / "store", directory / "output"
    write_log(FILES, store / "commitlog")
    (directory / "zz").mkdir()
    (directory / "zz" / "precious").write_bytes(b"precious")
    dispatch_all(store, output, CONFIG, max_bytes=700)
    with suppress(KeyboardInterrupt):
        rebuild_all(
            store, output, CONFIG, batch_bytes=300, before=fail_after(3, KeyboardInterrupt())
        )
    values = state_of(output / "reput" / "progress")
    del values["format"]
    swap = {"format": 1, "progress": values, "directories": ["consumequeue", "index"]}
    (output / "reput" / "swap").write_bytes(sealed(json.dumps(swap).encode()))
    batch = state_of(output / "reput" / "batch")
    batch |= {"number": batch["number"] + 1, "progress": values}
    (output / "reput" / "batch").write_bytes(sealed(json.dumps(batch).encode()))
    return directory


def state_of(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_bytes().split(b"\n")[0])
    return values


def outside(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Return all files below a directory except those of OUTPUT."""
    files = (p for p in directory.rglob("*") if p.is_file() and "output" not in p.parts)
    return {str(p.relative_to(directory)): (p.stat().st_mtime_ns, p.read_bytes()) for p in files}


def uses(store: Path, output: Path) -> list[Callable[[], object]]:
    """Return the operations on an OUTPUT: reads first, then those that change it."""

    def read() -> None:
        with MessageStore.open(store, output) as reads:
            for topic in reads.topics():
                reads.get_message(topic, 0, 0)
            reads.query_message("TopicTest", "k01")

    def status() -> None:
        config = config_to_compare(store, output, None, None)
        read_dispatch_status(CommitLog(config.commit_log_paths(store), config), output)

    return [
        read,
        status,
        lambda: verify(store, output, CONFIG),
        lambda: DispatchOutput.open(output, store, CONFIG, disk=HastyDisk()).close(clean=True),
        lambda: rebuild_all(store, output, CONFIG),
        lambda: dispatch_all(store, output, CONFIG),
    ]


def check_uses(directory: Path) -> None:
    """Perform all operations: only StoreErrors are raised, and files outside are unchanged."""
    before = outside(directory)
    for use in uses(directory / "store", directory / "output"):
        with suppress(StoreError):
            use()
        assert outside(directory) == before


@pytest.fixture(autouse=True)
def _waits_for_no_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageStore, "swap_wait_seconds", 0)


@pytest.mark.parametrize("name", STATE_FILES)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_value_in_any_field(made: Path, name: str, data: st.DataObject) -> None:
    values = state_of(made / "output" / "reput" / name)
    at = data.draw(st.sampled_from(list(places(values))))
    forged = json.dumps(changed(values, at, data.draw(VALUES))).encode()
    with TemporaryDirectory() as directory:
        copy = Path(directory) / "made"
        shutil.copytree(made, copy, symlinks=True)
        relocate(made, copy)
        (copy / "output" / "reput" / name).write_bytes(sealed(forged))
        check_uses(copy)


def relocate(made: Path, copy: Path) -> None:
    """Make a copied OUTPUT name the copied store as its origin."""
    for name in STATE_FILES:
        path = copy / "output" / "reput" / name
        line = path.read_bytes().split(b"\n")[0]
        path.write_bytes(sealed(line.replace(str(made).encode(), str(copy).encode())))


LOST = {"begin": 5, "end": 5, "path": "", "reason": ""}
NO_INDEX: dict[str, Any] = {"index_first": "", "index_file": "", "index_files": 0, "index_count": 0}
ATTACKS: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "queue": ("batch", lambda v: v | {"queues": [["../../store", "commitlog", 0, 0, 0]]}),
    "topic": ("batch", lambda v: v | {"queues": [["../../store/commitlog", 0, 0, 0, 0]]}),
    "end": ("batch", lambda v: v | {"queues": [["TopicTest", 0, 7, 20, 0]]}),
    "boolean": ("batch", lambda v: v | {"number": True}),
    "index file": ("batch", lambda v: v | {"index": {"file": "../../zz/p", "header": [0] * 6}}),
    "index header": ("batch", lambda v: v | {"index": {"file": "", "header": [2**40] * 6}}),
    "no header": ("batch", lambda v: v | {"index": v["index"] | {"header": []}}),
    "directory": ("swap", lambda v: v | {"directories": ["../zz"]}),
    "queues": ("swap", lambda v: v | {"queues": [["../..", 0]]}),
    "index name": ("progress", lambda v: v | {"index_file": "../../zz/precious"}),
    "drops": ("progress", lambda v: v | {"drops": {"../x/0": {"repeated": 1, "gaps": 0}}}),
    "negative": ("progress", lambda v: v | {"reput_from_offset": -1}),
    "float": ("progress", lambda v: v | {"batch": 1.0}),
    "huge": ("progress", lambda v: v | {"messages": 10**30}),
    "setting": ("progress", lambda v: v | {"shape": v["shape"] | {"max_index_num": 2**40}}),
    "NaN": ("progress", lambda v: v | {"batch": float("nan")}),
    "unknown": ("progress", lambda v: v | {"more": 1}),
    "begin": ("progress", lambda v: v | {"begin_offset": v["reput_from_offset"] + 1}),
    "index order": ("progress", lambda v: v | {"index_first": "9" * 17}),
    "no first index": ("progress", lambda v: v | {"index_first": ""}),
    "no last index": ("progress", lambda v: v | {"index_file": ""}),
    "no index": ("progress", lambda v: v | {"index_files": 0}),
    "one index": ("progress", lambda v: v | {"index_first": "0" * 17, "index_files": 1}),
    "index entries": ("progress", lambda v: v | {"index_count": 2**40}),
    "batches": ("progress", lambda v: v | {"batch": 0}),
    "rollback order": (
        "progress",
        lambda v: v | {"rollback_points": v["rollback_points"][::-1]},
    ),
    "rollback point": (
        "progress",
        lambda v: changed(v, ("rollback_points", 0, "reput_from_offset"), 2**40),
    ),
    "generation": ("progress", lambda v: v | {"generation": v["batch"] + 1}),
    "last record": ("progress", lambda v: changed(v, ("last_record", "offset"), 2**40)),
    "lost": ("progress", lambda v: v | {"lost": [LOST]}),
    "batch progress": ("batch", lambda v: changed(v, ("progress", "begin_offset"), 2**40)),
    "swap progress": ("swap", lambda v: changed(v, ("progress", "begin_offset"), 2**40)),
    "no progress": ("swap", lambda v: v | {"progress": None}),
    "swap without index": ("swap", lambda v: v | {"directories": ["consumequeue"]}),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_damage_that_names_the_file(made: Path, tmp_path: Path, attack: str) -> None:
    name, forge = ATTACKS[attack]
    copy = tmp_path / "made"
    shutil.copytree(made, copy)
    relocate(made, copy)
    for other in {"swap", "batch"} - {name}:
        (copy / "output" / "reput" / other).unlink()
    path = copy / "output" / "reput" / name
    path.write_bytes(sealed(json.dumps(forge(state_of(path))).encode()))
    before = outside(copy)
    with pytest.raises(DamageError, match="cannot be read") as caught:
        DispatchOutput.open(copy / "output", copy / "store", CONFIG, disk=HastyDisk())
    assert caught.value.path == path
    check_uses(copy)
    assert outside(copy) == before


def one_index_file(name: str) -> dict[str, Any]:
    return {"index_first": name, "index_file": name, "index_files": 1}


DELETIONS: dict[str, tuple[str, str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "all that is not named": (
        "swap",
        "it would delete consumequeue",
        lambda v: {"format": 1, "directories": [], "progress": v["progress"] | NO_INDEX},
    ),
    "index files before the first": (
        "progress",
        "it counts 1 index files from 9",
        lambda v: v | one_index_file("9" * 17),
    ),
    "index files behind the batch": (
        "batch",
        "it names index file ''",
        lambda v: v | {"progress": None, "queues": [], "index": {"file": "", "header": []}},
    ),
}


@pytest.mark.parametrize("deletion", DELETIONS)
def test_a_record_that_agrees_with_no_file_deletes_nothing(
    made: Path, tmp_path: Path, deletion: str
) -> None:
    name, reason, forge = DELETIONS[deletion]
    copy = tmp_path / "made"
    shutil.copytree(made, copy)
    relocate(made, copy)
    state = copy / "output" / "reput"
    shutil.rmtree(state / "bulk")
    for other in {"swap", "batch"} - {name}:
        (state / other).unlink()
    path = state / name
    path.write_bytes(sealed(json.dumps(forge(state_of(path))).encode()))
    before = built_tree(copy / "output")
    with pytest.raises(DamageError, match=reason) as caught:
        DispatchOutput.open(copy / "output", copy / "store", CONFIG, disk=HastyDisk())
    assert caught.value.path == path
    assert built_tree(copy / "output") == before


@pytest.mark.parametrize(
    ("is_its_own", "reason"),
    [
        (True, "it does not name consumequeue, which the rebuild made"),
        (False, r"it ends at offset 2504, its rebuild at \d+$"),
    ],
)
def test_a_swap_record_of_another_rebuild_is_damage(
    made: Path, tmp_path: Path, is_its_own: bool, reason: str
) -> None:
    copy = tmp_path / "made"
    shutil.copytree(made, copy)
    relocate(made, copy)
    output = copy / "output"
    swap = state_of(output / "reput" / "swap")
    progress = swap["progress"]
    if is_its_own:
        built = state_of(output / "reput" / "bulk" / "new" / "reput" / "progress")
        del built["format"]
        progress = built | {"stamp": progress["stamp"]}
    swap |= {"directories": [], "progress": progress | NO_INDEX}
    (output / "reput" / "swap").write_bytes(sealed(json.dumps(swap).encode()))
    before = built_tree(output)
    with pytest.raises(DamageError, match=reason):
        DispatchOutput.open(output, copy / "store", CONFIG, disk=HastyDisk())
    assert built_tree(output) == before


@pytest.mark.parametrize("name", STATE_FILES[:3])
@pytest.mark.parametrize(
    "line",
    [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000, b'"\\ud800"', b"\xff", b"NaN", b"[]", b""],
    ids=["nested lists", "nested objects", "digits", "surrogate", "bytes", "NaN", "list", "none"],
)
def test_a_state_file_without_a_record_is_damage(
    made: Path, tmp_path: Path, name: str, line: bytes
) -> None:
    shutil.copytree(made, tmp_path / "made")
    relocate(made, tmp_path / "made")
    (tmp_path / "made" / "output" / "reput" / name).write_bytes(sealed(line))
    check_uses(tmp_path / "made")


@pytest.mark.parametrize("name", [*STATE_FILES[:3], "../checkpoint"])
@pytest.mark.parametrize("kind", ["fifo", "directory", "oversized", "device"])
def test_irregular_state_files_are_not_read(
    made: Path, tmp_path: Path, name: str, kind: str
) -> None:
    shutil.copytree(made, tmp_path / "made")
    relocate(made, tmp_path / "made")
    path = tmp_path / "made" / "output" / "reput" / name
    path.unlink()
    if name == "batch":
        path.with_name("swap").unlink()  # it is read first
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as f:
            f.truncate(1 << 40)
    with pytest.raises(StoreError) as caught:
        DispatchOutput.open(tmp_path / "made" / "output", tmp_path / "made" / "store", CONFIG)
    assert path.name in str(caught.value)
    check_uses(tmp_path / "made")
