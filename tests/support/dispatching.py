"""Dispatch a store at the sink layer, without Spark, and compare the files.

planner -> scanner -> sink, as the streaming query wires them, in batches cut anywhere
"""

import ctypes
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoints.output import DispatchOutput
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.planner import UNLIMITED, LogPlanner
from store.commitlog.scanner import CHUNK_BYTES, Damage, Scanner
from store.config import StoreConfig
from store.io.disk import Disk
from store.output.progress import Progress
from streaming.sinks.dispatch_sink import DispatchSink
from tests.model.dispatch import ModelConfig

Stretch = DispatchRequests | Damage
Batch = list[Stretch]

PAGE_SIZE = 4096
BUILT_DIRECTORIES = ("consumequeue", "consumequeue_ext", "index")


_renameat2 = ctypes.CDLL(None).renameat2
_CWD, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE


class HastyDisk(Disk):
    """Writes everything, but never waits for the device: for tests that lose no power."""

    def _fsync(self, fd: int) -> None:
        pass

    def _fsync_directory(self, fd: int) -> None:
        pass

    def _sync_each(self, paths: set[Path], fsync: Callable[[int], None]) -> None:
        paths.clear()

    def _rename(self, source: Path, target: Path) -> None:
        """Rename by an exchange: ext4 writes out a file that replaces another, but not this one.

        As with any rename, a reader finds the old or the new file at any time.
        """
        if _renameat2(_CWD, bytes(source), _CWD, bytes(target), _EXCHANGE) == 0:
            source.unlink()
        else:  # the target does not exist, or the file system cannot do it
            super()._rename(source, target)


@dataclass(frozen=True)
class Content:
    """A file's size and its pages that are not all zero."""

    size: int
    pages: dict[int, bytes]


# --- Dispatch ----------------------------------------------------------------------------------


def dispatch_all(  # noqa: PLR0913 - each names one way to cut the same log
    store_root: Path,
    output: Path,
    config: StoreConfig,
    *,
    max_bytes: int = UNLIMITED,
    range_bytes: int = UNLIMITED,
    chunk_bytes: int = CHUNK_BYTES,
    one_by_one: bool = False,
    cuts: Iterable[int] | None = None,
    reopen: bool = False,
    twice: bool = False,
    fail_on_data_loss: bool = True,
    keep_expired: bool = False,
    adopts: bool = False,
    disk: Callable[[], Disk] = HastyDisk,
) -> Progress:
    """Dispatch the current log and return the progress record.

    A batch is what one plan of `max_bytes` reads; `cuts` (records per batch; the rest is one more
    batch) or `one_by_one` cut it further. `reopen` closes and reopens OUTPUT after each batch;
    `twice` applies the previous batch and each batch again.
    """
    sizes = iter(itertools.repeat(1) if one_by_one else cuts if cuts is not None else ())
    owned = DispatchOutput.open(output, store_root, config, adopts=adopts, disk=disk())
    how: dict[str, Any] = {"fail_on_data_loss": fail_on_data_loss, "keep_expired": keep_expired}
    sink = DispatchSink(owned, config, **how)
    planner = LogPlanner(owned.log, lambda: owned.is_log_clean(store_root), range_bytes=range_bytes)
    scanner = Scanner(config, chunk_bytes)
    last: Batch = []
    try:
        while True:
            plan = planner.plan(owned.progress.reput_from_offset, max_bytes=max_bytes)
            if not plan.ranges:
                return owned.progress
            stretches = [
                stretch
                for part in plan.ranges
                for stretch in scanner.read(part, skip_damage=not fail_on_data_loss)
            ]
            for batch in cut_stretches(stretches, sizes):
                sink.apply(batch)
                if reopen:
                    sink.close()
                    owned = DispatchOutput.open(output, store_root, config, disk=disk())
                    sink = DispatchSink(owned, config, **how)
                if twice:
                    sink.apply([*last, *batch])
                    last = batch
    finally:
        sink.close()


def cut_stretches(stretches: Iterable[Stretch], sizes: Iterator[int]) -> Iterator[Batch]:
    """Cut stretches into batches of these numbers of records; the rest is one batch."""
    batch: Batch = []
    room = next(sizes, UNLIMITED)
    for stretch in stretches:
        rest = stretch
        while isinstance(rest, DispatchRequests) and len(rest) > room:
            yield [*batch, rest.slice(0, room)] if room else batch
            rest = rest.slice(room, len(rest)) if room else rest
            batch, room = [], next(sizes, UNLIMITED)
        batch.append(rest)
        room -= len(rest) if isinstance(rest, DispatchRequests) else 0
    yield batch


def to_model_config(config: StoreConfig) -> ModelConfig:
    """Return the same configuration for the executable model."""
    return ModelConfig(
        commit_log_file_size=config.mapped_file_size_commit_log,
        consume_queue_file_size=config.mapped_file_size_consume_queue,
        consume_queue_ext_file_size=config.mapped_file_size_consume_queue_ext,
        max_hash_slot_num=config.max_hash_slot_num,
        max_index_num=config.max_index_num,
        message_index_enable=config.message_index_enable,
        enable_consume_queue_ext=config.enable_consume_queue_ext,
        enable_multi_dispatch=config.enable_multi_dispatch,
        enable_lmq=config.enable_lmq,
        message_delay_level=config.message_delay_level,
        enabled_append_prop_crc=config.enabled_append_prop_crc,
        version=tuple(config.version),
    )


# --- Compare -----------------------------------------------------------------------------------


def tree(directory: Path) -> dict[str, Content]:
    """Map the relative path of each file below a directory to its content."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): read_content(path) for path in files}


def built_tree(directory: Path) -> dict[str, Content]:
    """Map the files that dispatch builds in an OUTPUT; index files are keyed by their number."""
    built: dict[str, Content] = {}
    for kind in BUILT_DIRECTORIES:
        contents = tree(directory / kind)
        names = [str(n) for n in range(len(contents))] if kind == "index" else contents
        built |= {f"{kind}/{n}": c for n, c in zip(names, contents.values(), strict=True)}
    return built


def assert_same_store(actual: Path, expected: Path) -> None:
    """Compare queues by name, size and bytes, index files by order, size and bytes."""
    assert_same_content(built_tree(actual), built_tree(expected))


def assert_same_content(actual: dict[str, Content], expected: dict[str, Content]) -> None:
    """Compare files; a difference is reported by file and position."""
    assert sorted(expected) == sorted(actual)
    assert {n: c.size for n, c in expected.items()} == {n: c.size for n, c in actual.items()}
    differing = {
        name: first_difference(expected[name], actual[name])
        for name in expected
        if expected[name] != actual[name]
    }
    assert differing == {}


def first_difference(expected: Content, actual: Content) -> str:
    """Describe the first position where two contents differ, and the bytes there."""
    zeros = bytes(PAGE_SIZE)
    for number in sorted(expected.pages.keys() | actual.pages.keys()):
        a, b = expected.pages.get(number, zeros), actual.pages.get(number, zeros)
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            if x != y:
                return f"at {number * PAGE_SIZE + i}: {a[i : i + 8].hex()} != {b[i : i + 8].hex()}"
    return f"size {expected.size} != {actual.size}"


def content_of(data: bytes) -> Content:
    """Return bytes as file content."""
    pages: dict[int, bytes] = {}
    add_pages(pages, 0, data)
    return Content(len(data), pages)


def read_content(path: Path) -> Content:
    """Read a file, skipping its holes."""
    size, at = path.stat().st_size, 0
    pages: dict[int, bytes] = {}
    with path.open("rb") as file:
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:  # Only a hole follows.
                break
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            at -= at % PAGE_SIZE
            file.seek(at)
            add_pages(pages, at // PAGE_SIZE, file.read(end - at))
            at = end
    return Content(size, pages)


def add_pages(pages: dict[int, bytes], number: int, data: bytes) -> None:
    """Add the pages of `data` that are not all zero, numbered from `number`."""
    for at in range(0, len(data), PAGE_SIZE):
        page = data[at : at + PAGE_SIZE].ljust(PAGE_SIZE, b"\0")
        if page.count(0) != PAGE_SIZE:
            pages[number + at // PAGE_SIZE] = page
