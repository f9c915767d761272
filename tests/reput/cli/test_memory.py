"""Commands do not keep in memory what a log holds of anything that a sender chooses."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store.commitlog.record import NewMessage, make_properties
from store.commitlog.writer import schedule
from store.config import StoreConfig
from tests.support.bulk_writer import BulkWriter
from tests.support.commands import REPUT

FEW, MANY = 30_000, 120_000
LONG = 400  # bytes of the text that differs by message
GROWTH_MAX = 110 << 20  # of the peak; all texts of MANY messages take 48 to 96 MB once
TEXT = "########" + "x" * (LONG - 8)


def delayed() -> NewMessage:
    return schedule(NewMessage("T", 0, b"", make_properties(uniq_key=TEXT, keys=TEXT)), 3)


def timer() -> NewMessage:
    due = {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": "1700000000000"}
    properties = {**make_properties(uniq_key=TEXT, keys=TEXT), **due}
    return NewMessage("rmq_sys_wheel_timer", 0, b"", properties)


def tagged() -> NewMessage:
    return NewMessage("T", 0, b"", make_properties(tags=TEXT))


def of_topic() -> NewMessage:
    return NewMessage("########" + "t" * 119, 0, b"", make_properties(uniq_key=TEXT))


def write_log(store_root: Path, message: NewMessage, count: int) -> Path:
    with BulkWriter(store_root, StoreConfig(mapped_file_size_commit_log=256 << 20)) as writer:
        writer.append_many([message], count)
        size = writer.end // count
    (store_root / "broker.conf").write_text(f"mappedFileSizeCommitLog={256 << 20}\n")
    if message.topic.startswith("#"):  # append_many numbers bodies and properties only
        records = np.memmap(store_root / "commitlog" / ("0" * 20), np.uint8, "r+")[: count * size]
        rows = records.reshape(count, size)
        at = rows[0].tobytes().index(message.topic.encode())
        for place in range(8):
            rows[:, at + place] = np.arange(count) // 10 ** (7 - place) % 10 + ord("0")
    return store_root


def peak(arguments: list[str]) -> int:
    """Run a command, read its output, and return its peak of private memory in bytes."""
    process = subprocess.Popen(
        [*REPUT, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    status, found = Path(f"/proc/{process.pid}/status"), 0
    while process.poll() is None:
        lines = status.read_text().splitlines()
        found = max([found, *(int(x.split()[1]) << 10 for x in lines if x.startswith("RssAnon:"))])
        time.sleep(0.01)
    assert process.returncode == 0
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (delayed, ["pending", "--json"]),
        (timer, ["pending", "--all"]),
        (tagged, ["usage", "--by", "tag"]),
        (of_topic, ["topics", "--write-topics-json", "FILE"]),
    ],
)
def test_the_peak_does_not_grow_with_what_senders_choose(
    tmp_path: Path, message: Callable[[], NewMessage], arguments: list[str]
) -> None:
    peaks = []
    for count in (FEW, MANY):
        store_root = write_log(tmp_path / str(count), message(), count)
        given = [str(store_root / "topics.json") if a == "FILE" else a for a in arguments]
        peaks.append(peak([given[0], str(store_root), *given[1:]]))
    assert peaks[1] - peaks[0] < GROWTH_MAX
