"""How verify names a difference, and that it finds every difference. No JVM."""

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints.state_paths import REPUT_DIR
from store.compare.store import Difference
from store.config import StoreConfig
from streaming.queries.verify import verify
from tests.logs.build import build_log, write_log
from tests.logs.random_logs import Mix, random_messages
from tests.support.dispatching import dispatch_all
from tests.support.verify_stores import (
    CONFIG,
    ENTRIES_AT,
    EXT_CONFIG,
    EXT_QUEUE,
    QUEUE,
    VARIANTS,
    flip,
    forget_progress,
    index_file,
    make,
    messages,
    only,
    write_store,
)


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "broker"])
def test_a_units_fields_are_compared(tmp_path: Path, is_ours: bool) -> None:
    store, output = make(tmp_path)
    if not is_ours:
        forget_progress(output)
    path = output / QUEUE / f"{100:020}"
    flip(path, 2 * 20 + 7)
    size = 191 + len("TopicTest") + len("TAGS=A;KEYS=k0 common;")
    found = only(verify(store, output, CONFIG))
    assert found == Difference(
        path,
        "unit",
        2,
        7,
        f"commit log offset {7 * size}, size {size}, tags code 65",
        f"commit log offset {(7 * size) ^ 1}, size {size}, tags code 65",
    )
    assert str(found).startswith(f"{path}: unit 2 (position 7) expected commit log offset")


def test_only_the_first_differing_unit_of_a_file_is_reported(tmp_path: Path) -> None:
    store, output = make(tmp_path)
    for base in (0, 100):
        for unit in (3, 1):
            flip(output / QUEUE / f"{base:020}", unit * 20 + 19)
    found = verify(store, output, CONFIG).differences
    assert [(d.path.name, d.index) for d in found] == [(f"{0:020}", 1), (f"{100:020}", 1)]


def test_a_unit_after_the_end_differs(tmp_path: Path) -> None:
    store, output = make(tmp_path)
    flip(output / QUEUE / f"{200:020}", 3 * 20 + 11)
    found = only(verify(store, output, CONFIG))
    assert (found.part, found.index, found.position) == ("unit", 3, 13)
    assert found.expected == "nothing (zeros)"
    assert found.actual == "commit log offset 0, size 1, tags code 0"


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "broker"])
def test_pre_fill_is_compared(tmp_path: Path, is_ours: bool) -> None:
    store = write_store(tmp_path, messages(6, first=8), start=4096)
    output = tmp_path / "output"
    dispatch_all(store, output, CONFIG)
    assert verify(store, output, CONFIG).is_equal
    if not is_ours:
        forget_progress(output)
        assert verify(store, output, CONFIG).is_equal
    path = output / QUEUE / f"{100:020}"
    flip(path, 20 + 11)
    found = only(verify(store, output, CONFIG))
    assert (found.path, found.part, found.index, found.position) == (path, "unit", 1, 6)
    assert "pre-fill" in found.expected
    assert found.actual == "commit log offset 0, size 2147483646, tags code 0"


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "broker"])
def test_an_ext_unit_is_compared(tmp_path: Path, is_ours: bool) -> None:
    store, output = make(tmp_path, EXT_CONFIG)
    if not is_ours:
        forget_progress(output)
    path = output / EXT_QUEUE / f"{130:020}"
    flip(path, 20 + 17)
    found = only(verify(store, output, EXT_CONFIG))
    stamp = 1_700_000_007_000
    assert found == Difference(
        path,
        "ext unit",
        1,
        None,
        f"size 20, tags code 65, store timestamp {stamp}, bitmap length 0",
        f"size 20, tags code 65, store timestamp {stamp ^ 1}, bitmap length 0",
    )


def test_an_index_header_is_compared(tmp_path: Path) -> None:
    store, output = make(tmp_path)
    flip(index_file(output, 1), 15)
    found = only(verify(store, output, CONFIG))
    end = 1_700_000_011_000
    assert found == Difference(
        index_file(output, 1),
        "header",
        None,
        None,
        f"end_timestamp {end}",
        f"end_timestamp {end ^ 1}",
    )


def test_an_index_slot_is_compared(tmp_path: Path) -> None:
    store, output = make(tmp_path)
    path = index_file(output)
    was = int.from_bytes(path.read_bytes()[40 + 3 * 4 :][:4], "big")
    flip(path, 40 + 3 * 4 + 3, 0x10)
    found = only(verify(store, output, CONFIG))
    assert (found.path, found.part, found.index) == (path, "slot", 3)
    assert found.actual == f"entry {was ^ 0x10}"
    assert found.expected == (f"entry {was}" if was else "no entry")


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "broker"])
def test_an_index_entry_is_compared(tmp_path: Path, is_ours: bool) -> None:
    store, output = make(tmp_path)
    if not is_ours:
        forget_progress(output)
    path = index_file(output, 1)
    flip(path, ENTRIES_AT + 5 * 20 + 11)
    found = only(verify(store, output, CONFIG))
    assert (found.path, found.part, found.index) == (path, "entry", 5)
    assert found.expected.startswith("key hash ")
    assert found.expected != found.actual


@pytest.mark.parametrize("number", [0, 12])
def test_an_index_entry_that_is_not_in_use_must_be_empty(tmp_path: Path, number: int) -> None:
    store, output = make(tmp_path, count=3)
    flip(index_file(output), ENTRIES_AT + number * 20)
    found = only(verify(store, output, CONFIG))
    assert (found.part, found.index, found.expected) == ("entry", number, "nothing (zeros)")


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "broker"])
@pytest.mark.parametrize(
    "name", [f"{QUEUE}/{0:020}", f"{QUEUE}/{200:020}", f"{EXT_QUEUE}/{130:020}", "index"]
)
def test_a_missing_file_is_reported(tmp_path: Path, name: str, is_ours: bool) -> None:
    store, output = make(tmp_path, EXT_CONFIG)
    if not is_ours:
        forget_progress(output)
    path = index_file(output, 1) if name == "index" else output / name
    size = path.stat().st_size
    path.unlink()
    found = only(verify(store, output, EXT_CONFIG))
    assert (found.part, found.expected) == ("file", f"a file of {size} bytes")
    assert found.actual == "no file"
    assert found.path.parent == path.parent


def test_a_missing_queue_is_reported(tmp_path: Path) -> None:
    store, output = make(tmp_path)
    shutil.rmtree(output / "consumequeue")
    found = verify(store, output, CONFIG).differences
    assert [d.path.name for d in found] == [f"{0:020}", f"{100:020}", f"{200:020}"]


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "broker"])
@pytest.mark.parametrize(
    "name",
    [
        f"{QUEUE}/{300:020}",
        f"{QUEUE}/notes",
        f"consumequeue/TopicTest/1/{0:020}",
        "consumequeue/stray",
        f"{EXT_QUEUE}/{260:020}",
        f"consumequeue_ext/Other/0/{0:020}",
        "index/99991231235959999",
        "index/stray",
    ],
)
def test_an_extra_file_is_reported(tmp_path: Path, name: str, is_ours: bool) -> None:
    store, output = make(tmp_path, EXT_CONFIG)
    if not is_ours:
        forget_progress(output)
    path = output / name
    path.parent.mkdir(parents=True, exist_ok=True)
    model = index_file(output) if name.startswith("index") else next((output / EXT_QUEUE).iterdir())
    size = 100 if name.startswith(QUEUE) or "/1/" in name else model.stat().st_size
    path.write_bytes(bytes(size))
    found = only(verify(store, output, EXT_CONFIG))
    assert (found.path, found.part, found.expected) == (path, "file", "no such file")


@pytest.mark.parametrize("name", [f"{QUEUE}/{100:020}", f"{EXT_QUEUE}/{0:020}", "index"])
@pytest.mark.parametrize("change", [-1, 1, -100])
def test_a_file_of_another_size_is_reported(tmp_path: Path, name: str, change: int) -> None:
    store, output = make(tmp_path, EXT_CONFIG)
    path = index_file(output) if name == "index" else output / name
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size + change)
    found = only(verify(store, output, EXT_CONFIG))
    assert (found.path, found.part) == (path, "file")
    assert found.expected == f"a file of {size} bytes"
    assert found.actual == f"{size + change} bytes"


@pytest.fixture(scope="module", params=["ours", "broker"])
def odd_root(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, StoreConfig]:
    """Dispatch an odd log with every kind of file."""
    parent = tmp_path_factory.mktemp("odd")
    config = replace(VARIANTS["lmq"], mapped_file_size_commit_log=8192)
    sent = random_messages(Random(5), 60, Mix())
    write_log(build_log(sent, 8192), parent / "store/commitlog")
    dispatch_all(parent / "store", parent / "output", config)
    if request.param == "broker":
        forget_progress(parent / "output")
    return parent / "store", parent / "output", config


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_found(
    odd_root: tuple[Path, Path, StoreConfig], data: st.DataObject
) -> None:
    store, output, config = odd_root
    kinds = ("consumequeue", "consumequeue_ext", "index")
    files = sorted(p for kind in kinds for p in (output / kind).rglob("*") if p.is_file())
    path = data.draw(st.sampled_from(files))
    at = data.draw(st.integers(0, path.stat().st_size - 1))
    mask = data.draw(st.integers(1, 255))
    flip(path, at, mask)
    try:
        found = verify(store, output, config).differences
    finally:
        flip(path, at, mask)
    assert found
    if (output / REPUT_DIR).exists():
        assert {d.path for d in found} == {path}
