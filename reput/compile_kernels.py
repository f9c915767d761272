"""Compile all kernels into their cache: ``python -m reput.compile_kernels``.

Set-up and the image build run this, so that no command has to compile. Numba compiles a kernel at
its first call, for the types of the arguments. So this module dispatches, verifies and reads a
small store, and decodes it to columns, without Spark.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from checkpoints.output import DispatchOutput
from store import MessageStore, kernels
from store.arrow.batches import message_batches
from store.arrow.schema import MESSAGE_FIELDS
from store.commitlog.boundary_search import first_stored_at, narrow_to_times
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.planner import LogPlanner
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.scanner import Scanner, load_kernels
from store.commitlog.writer import CommitLogWriter, schedule
from store.config import BROKER_CONF, StoreConfig, load_config
from store.dump.file import dump_file
from store.io.mapped_file import file_name, map_file
from store.layout import COMMIT_LOG_DIR
from streaming.queries.verify import verify
from streaming.sinks.dispatch_sink import DispatchSink

_CONF = """\
mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=400
maxHashSlotNum=10
maxIndexNum=20
"""
_TOPIC = "T"


def compile_kernels() -> None:
    """Call each kernel with the types that the commands use."""
    load_kernels()
    with tempfile.TemporaryDirectory(prefix="reput-kernels-") as directory:
        store, output = Path(directory, "store"), Path(directory, "output")
        store.mkdir()
        (store / BROKER_CONF).write_text(_CONF)
        config = load_config(store)
        _write_log(store, config)
        requests = _dispatch(store, output, config)
        verify(store, output, config)
        _read(store, output)
        log = store / COMMIT_LOG_DIR / file_name(0)
        _decode(requests, (map_file(log), 0, str(log)), config)


def _write_log(store: Path, config: StoreConfig) -> None:
    """Write every kind of message: with and without keys, batched, delayed, repeated properties."""
    properties = make_properties(uniq_key="U", keys="a b", tags="A")
    message = NewMessage(_TOPIC, 0, b"body", properties)
    with CommitLogWriter(store, config) as writer:
        for _ in range(30):
            writer.append(message)
        writer.append_batch([message, message])
        writer.append(schedule(message, 3))


def _dispatch(store: Path, output: Path, config: StoreConfig) -> DispatchRequests:
    """Build the queues and the index in two batches; return requests from the last batch."""
    owned = DispatchOutput.open(output, store, config)
    sink = DispatchSink(owned, config)
    planner = LogPlanner(owned.log, lambda: owned.is_log_clean(store))
    first_stored_at(owned.log, 0)
    for part in planner.plan(0).ranges:
        narrow_to_times(part, config, (0, 0))
    scanner, last = Scanner(config), None
    try:
        while (plan := planner.plan(owned.progress.reput_from_offset, max_bytes=4000)).ranges:
            stretches = [stretch for part in plan.ranges for stretch in scanner.read(part)]
            sink.apply(stretches)
            last = stretches[0]
    finally:
        sink.close()
    assert isinstance(last, DispatchRequests)
    return last


def _read(store: Path, output: Path) -> None:
    """Walk to the log's end, as a read of a broker's own files does: they do not record it."""
    with MessageStore.open(store, output) as s:
        assert s.query_message(_TOPIC, "a").messages
        assert s.max_phy_offset() > 0
        assert s.read_arrow(_TOPIC, 0, 0).read_all().num_rows
    for section in dump_file(store / COMMIT_LOG_DIR / file_name(0), start=1).sections:
        for _ in section:
            pass


def _decode(
    requests: DispatchRequests, file: tuple[NDArray[np.uint8], int, str], config: StoreConfig
) -> None:
    view, base, path = file
    columns = tuple(MESSAGE_FIELDS)
    for _ in message_batches(requests, view, base, columns, config=config, path=path):
        pass


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger(kernels.__name__).setLevel(logging.INFO)
    compile_kernels()
