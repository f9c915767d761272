"""Compare the files of a dispatch with its broker's, while both are running."""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from store import layout
from tests.integration.servers.processes import POLL_SECONDS
from tests.integration.servers.reput import Dispatcher, open_store
from tests.integration.servers.rocketmq import RocketMq
from tests.support.dispatching import (
    BUILT_DIRECTORIES,
    Content,
    assert_same_store,
    read_content,
    tree,
)

# Small files, so that each kind rolls many times.
SIZES = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "1000",
    "maxHashSlotNum": "97",
    "maxIndexNum": "500",
}
EQUAL_SECONDS = 240.0
# Longer than a 5.x broker batches the ends of transactions before it writes them.
QUIET_SECONDS = 5.0


def wait_until_equal(mq: RocketMq, dispatcher: Dispatcher) -> None:
    """Wait until writing has stopped and the two are equal; raise with the difference otherwise."""
    wait_until_quiet(mq, dispatcher)
    deadline = time.monotonic() + EQUAL_SECONDS
    while not _are_equal(dispatcher.output, mq.store):
        assert dispatcher.server.is_running, dispatcher.server.tail()
        if time.monotonic() > deadline:
            assert_same_store(dispatcher.output, mq.store)
        time.sleep(POLL_SECONDS)


def wait_until_quiet(mq: RocketMq, dispatcher: Dispatcher) -> None:
    """Wait until the log has not grown for a while and all of it is dispatched."""
    with open_store(mq, mq.store) as store:
        size = store.config.mapped_file_size_commit_log
        quiet_since, before = time.monotonic(), store.max_phy_offset()

        def is_quiet() -> bool:
            nonlocal quiet_since, before
            end, offset = store.max_phy_offset(), dispatcher.offset
            if end != before:
                quiet_since, before = time.monotonic(), end
            # A blank at the end of a file is not stepped over before a record follows it.
            is_dispatched = offset == end or (end % size == 0 and 0 < end - offset < size)
            return is_dispatched and time.monotonic() - quiet_since >= QUIET_SECONDS

        dispatcher.server.wait_until(is_quiet, "at the end of a quiet log", EQUAL_SECONDS)


def _are_equal(output: Path, store: Path) -> bool:
    try:
        assert_same_store(output, store)
    except AssertionError:
        return False
    return True


def units(output: Path) -> Counter[str]:
    """Count the units of each topic's queues."""
    counts: Counter[str] = Counter()
    for name, content in tree(output / "consumequeue").items():
        # Pages that are not listed are zero; a unit counts if its size is not zero.
        for number, page in content.pages.items():
            at = number * len(page)
            assert at == 0, "only files of one page can be counted"
            width = layout.CQ_UNIT.itemsize
            sizes = [page[i + 8 : i + 12] for i in range(0, content.size, width)]
            counts[name.split("/")[0]] += sum(size != bytes(4) for size in sizes)
    return counts


@dataclass(frozen=True)
class Stamp:
    """The properties of a file that a write changes."""

    inode: int
    modified_ns: int
    content: Content


def stamps(output: Path) -> dict[str, Stamp]:
    """Map the relative path of each file that a dispatch builds to its stamp."""
    found = {}
    for kind in BUILT_DIRECTORIES:
        for path in sorted((output / kind).rglob("*")):
            if path.is_file():
                seen = path.stat()
                stamp = Stamp(seen.st_ino, seen.st_mtime_ns, read_content(path))
                found[str(path.relative_to(output))] = stamp
    return found
