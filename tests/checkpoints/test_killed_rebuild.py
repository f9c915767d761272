"""Readers of an OUTPUT whose rebuild was killed get right answers or an error, never wrong ones."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from checkpoints.state_paths import BULK_DIR, NEW_OUTPUT_DIR
from checkpoints.swap import SwapRecord, write_swap
from store import MessageStore
from store.config import StoreConfig
from store.errors import StoreIOError
from store.io.disk import Disk
from store.output.progress import SWAP, read_progress
from streaming.queries.verify import verify
from tests.support.cases import first_cases, stride
from tests.support.crashes import CrashingDisk, Killed
from tests.support.dispatching import dispatch_all
from tests.support.rebuilding import rebuild_all
from tests.support.stores.aged import sent
from tests.support.verify_stores import VARIANTS, messages, write_store

MANY = 1_000_000


class NotingDisk(CrashingDisk):
    """Never kills; ``swap_at`` is the number of calls before the swap began."""

    swap_at = 0

    def _rename(self, source: Path, target: Path) -> None:
        if target.name == SWAP.name:
            self.swap_at = MANY - self.calls
        super()._rename(source, target)


def killed_outputs(
    directories: tuple[Path, Path], config: StoreConfig, stride: int
) -> Iterator[Path]:
    """Yield OUTPUT after a rebuild that was killed at some calls before the swap, any after."""
    store_root, output = directories
    copy = output.with_name("copy")
    shutil.copytree(output, copy)
    noted = NotingDisk(MANY, output.with_name("graves"))
    rebuild_all(store_root, copy, config, disk=noted)
    total = MANY - noted.calls
    assert 40 < noted.swap_at < total - 10
    swap = range(noted.swap_at - 2, total)
    for calls in [*range(0, noted.swap_at, 16 * stride), *swap[:: -(-stride // 6)]]:
        shutil.rmtree(copy)
        shutil.copytree(output, copy)
        disk = CrashingDisk(calls, output.with_name("graves"))
        with pytest.raises(Killed):
            rebuild_all(store_root, copy, config, disk=disk)
        disk.lose(Random(calls), calls % 3 / 2)
        yield copy


def messages_of(reads: MessageStore) -> list[tuple[str, int, bytes]]:
    """Read a queue to its end, by tags, so that its ext units are read."""
    at, end = reads.min_offset_in_queue("T", 0), reads.max_offset_in_queue("T", 0)
    found = []
    while at < end:
        read = reads.get_message("T", 0, at, tags="t0 || t2")
        found += [(m.topic, m.queue_offset, m.body) for m in read.messages]
        at = read.next_begin_offset
    return found


@pytest.mark.parametrize("variant", first_cases(["ext", "plain"]))
@stride(29)
def test_a_reader_of_a_killed_rebuild_gets_right_answers_or_an_error(
    tmp_path: Path, variant: str, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    monkeypatch.setattr(MessageStore, "swap_wait_seconds", 0)
    config = VARIANTS[variant]
    store_root, output = write_store(tmp_path, sent(60)), tmp_path / "output"
    dispatch_all(store_root, output, config, max_bytes=2000)
    with MessageStore.open(store_root, output) as reads:
        right = messages_of(reads)
    errors: list[str] = []
    for killed in killed_outputs((store_root, output), config, stride):
        with MessageStore.open(store_root, killed) as reads:
            try:
                assert messages_of(reads) == right
                assert 0 in reads.queue_ids("T")
            except StoreIOError as e:
                errors.append(str(e))
    assert errors
    assert all("reput rebuild" in text for text in errors)


def test_a_swap_is_not_completed_over_the_queues_of_a_broker_that_ran_since(tmp_path: Path) -> None:
    config = VARIANTS["plain"]
    directories = write_store(tmp_path, messages(12)), tmp_path / "output"
    dispatch_all(*directories, config)
    progress = read_progress(directories[1])
    assert progress is not None
    new = directories[1] / NEW_OUTPUT_DIR / "consumequeue/TopicTest/0"
    new.mkdir(parents=True)
    (new / f"{0:020}").write_bytes(bytes(100))
    target = replace(progress, index_files=0, index_file="", index_first="", index_count=0)
    write_swap(directories[1], SwapRecord(target, ("consumequeue",)), Disk())
    (directories[1] / "checkpoint").write_bytes(bytes(4096))  # as a broker's
    dispatch_all(*directories, config)
    assert verify(*directories, config).differences == ()
    assert not (directories[1] / BULK_DIR).exists()
