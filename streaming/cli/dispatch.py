"""``reput dispatch``: the long-running query on the command line."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from checkpoints.progress import queue_key
from store.errors import ConfigError
from streaming.cli.options import (
    BrokerConf,
    BrokerVersion,
    Json,
    describe_settings,
    parse_flag,
    parse_time,
)
from streaming.cli.recover import recovered_json, recovered_words, recovery_progress
from streaming.cli.show import drops_line
from streaming.options import parse_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streaming.progress import DispatchProgress
    from streaming.query import Dispatch, PreparedDispatch

_log = logging.getLogger("reput.dispatch")
_POLL_SECONDS = 0.2
_MEGA = 1e6


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dispatch")(dispatch)


def dispatch(  # noqa: PLR0913 - one parameter an option
    store: Annotated[Path, typer.Argument(help="the broker's storePathRootDir")],
    output: Annotated[Path, typer.Option(help="where consumequeue/ and index/ are built")],
    *,
    broker_conf: BrokerConf = None,
    broker_version: BrokerVersion = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="dispatch what is there, then stop")
    ] = False,
    from_offset: Annotated[
        int | None, typer.Option(help="begin at this physical offset (a new OUTPUT), or replay")
    ] = None,
    from_time: Annotated[
        str | None, typer.Option(help="the same by time: epoch ms or ISO 8601")
    ] = None,
    max_bytes_per_trigger: Annotated[
        str | None, typer.Option(help="how much log a micro-batch takes [default: 256m]")
    ] = None,
    trigger_interval: Annotated[
        str, typer.Option(help="how often to look for more, e.g. 5s or 1m")
    ] = "0s",
    fail_on_data_loss: Annotated[
        str, typer.Option(metavar="BOOL", help="false: go on behind damage and record what is lost")
    ] = "true",
    keep_expired: Annotated[
        bool,
        typer.Option(
            "--keep-expired", help="keep queue and index files whose messages the log has lost"
        ),
    ] = False,
    master: Annotated[str | None, typer.Option(help="Spark master URL [default: local[*]]")] = None,
    as_json: Json = False,
) -> None:
    """Build ConsumeQueue and IndexFile from a commit log, and keep them built.

    Runs until it is stopped (Ctrl-C or SIGTERM, both clean); starts again where it left off.
    """
    from streaming.query import DispatchOptions, prepare_dispatch

    reporter = Reporter(is_live=sys.stderr.isatty() and not as_json, as_json=as_json)
    options = DispatchOptions(
        broker_conf=broker_conf,
        broker_version=broker_version,
        from_offset=from_offset,
        from_time=parse_time("--from-time", from_time),
        available_now=available_now,
        trigger_interval=trigger_interval,
        max_bytes_per_trigger=_size("--max-bytes-per-trigger", max_bytes_per_trigger),
        fail_on_data_loss=parse_flag("--fail-on-data-loss", fail_on_data_loss),
        keep_expired=keep_expired,
        on_progress=reporter.report,
    )
    with recovery_progress(is_shown=reporter.is_live) as report:
        prepared = prepare_dispatch(store, output, replace(options, on_recovery=report))
    run_dispatch(prepared, reporter, master=master)


def run_dispatch(
    prepared: PreparedDispatch,
    reporter: Reporter,
    *,
    master: str | None = None,
    meanwhile: Callable[[Dispatch, threading.Event], None] | None = None,
) -> None:
    """Run a dispatch until it ends or is stopped, or ``meanwhile`` returns. Raises what ended it.

    ``meanwhile`` gets the event that a signal to stop sets.
    """
    from streaming.query import query_error

    with stop_signals() as stop:
        reporter.begin(prepared)
        try:
            spark = _start_spark(master, stop)
        except BaseException:
            prepared.close()
            raise
        try:
            running = prepared.start(spark)
            reporter.start()
            try:
                (meanwhile or _wait)(running, stop)
            finally:
                running.close()
                reporter.end(running)
            error = running.sink.error or query_error(running.query)
            if error is not None and not stop.is_set():
                raise error
        finally:
            spark.stop()


def _wait(running: Dispatch, stop: threading.Event) -> None:
    while running.query.isActive and not stop.wait(_POLL_SECONDS):
        pass


def _start_spark(master: str | None, stop: threading.Event) -> SparkSession:
    """Start Spark; its own SIGINT handler is replaced before a signal can reach it."""
    from streaming.session import build_session

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        spark = build_session("reput dispatch", master)
        _handle_signals(stop)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return spark


def _handle_signals(stop: threading.Event) -> dict[signal.Signals, Any]:
    """Let SIGINT and SIGTERM set an event; return the handlers they had."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    return {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Turn SIGINT and SIGTERM into an event while inside."""
    stop = threading.Event()
    old = _handle_signals(stop)
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@dataclass
class Reporter:
    """Shows a dispatch: a live line on a terminal, structured log lines otherwise."""

    is_live: bool
    as_json: bool = False

    def __post_init__(self) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._began = time.monotonic()
        self._has_ended = False

    def begin(self, prepared: PreparedDispatch) -> None:
        """Say once what is assumed and where it goes on."""
        config, root = prepared.config, prepared.root
        self._say(
            "start",
            describe_settings(config),
            version=str(config.version),
            mappedFileSizeCommitLog=config.mapped_file_size_commit_log,
            mappedFileSizeConsumeQueue=config.mapped_file_size_consume_queue,
            messageIndexEnable=config.message_index_enable,
            reput_from_offset=root.progress.reput_from_offset,
            output=str(root.path),
        )
        for recovered in root.recovered:
            fields = recovered_json(recovered)
            self._say("recovered", recovered_words(recovered), **fields | fields.pop("cut"))
        at, is_new = prepared.begin, root.progress.is_untouched
        how = "begins" if is_new else "goes on"
        if at < root.progress.reput_from_offset:
            how = "dispatches again, which changes nothing,"
        self._say("position", f"{root.path}: {how} at offset {at:,}", begin_offset=at, how=how)
        if not root.log.files:
            where = " and ".join(map(str, root.log.directories))
            self._say("warning", f"no commit log file in {where} yet", empty=where)
        if self.is_live:
            self._live = Live(Text("starting Spark"), console=self._console, transient=True)
            self._live.start()

    def start(self) -> None:
        """Count time from now on: the query has been started."""
        self._began = time.monotonic()
        if self._live is not None:
            self._live.update(Text("waiting for the log"))

    def report(self, progress: DispatchProgress) -> None:
        """Show one progress report."""
        if self._has_ended:
            return
        if self._live is not None:
            self._live.update(Text(progress_line(progress)))
        elif not self.is_live:
            self._say("progress", progress_line(progress), **asdict(progress))

    def end(self, running: Dispatch) -> None:
        """Say what was done; a report that comes later is not shown."""
        self._has_ended = True
        if self._live is not None:
            self._live.stop()
        counts, progress = running.sink.counts, running.root.progress
        seconds = time.monotonic() - self._began
        self._say(
            "stop",
            f"dispatched {counts.messages:,} messages ({counts.bytes / _MEGA:,.1f} MB of log) in "
            f"{seconds:.1f} s; {running.root.path} is at offset {progress.reput_from_offset}",
            messages=counts.messages,
            bytes=counts.bytes,
            seconds=round(seconds, 3),
            reput_from_offset=progress.reput_from_offset,
        )
        if counts.expired_files:
            text = f"deleted {counts.expired_files:,} queue and index files that had expired"
            self._say("expired", text, files=counts.expired_files)
        for queue, drops in progress.drops.items():
            topic, queue_id = queue_key(queue)
            text = drops_line(topic, queue_id, (drops["repeated"], drops["gaps"]))
            self._say("rules", text, queue=queue, **drops)
        for lost in progress.lost:
            text = f"lost: offsets {lost.begin} to {lost.end} of {lost.path}: {lost.reason}"
            self._say("lost", text, **asdict(lost))

    def _say(self, event: str, text: str, **fields: object) -> None:
        if self.as_json:
            print(json.dumps({"event": event, **fields}), flush=True)
        elif self.is_live:
            self._console.print(text, highlight=False)
        else:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            pairs = " ".join(f"{k}={_logfmt(v)}" for k, v in fields.items())
            print(f"{stamp} {event} {pairs}", file=sys.stderr, flush=True)


def progress_line(p: DispatchProgress) -> str:
    """Return a report as one line for people."""
    return (
        f"offset {p.reput_from_offset:,}  {p.bytes_per_second / _MEGA:,.1f} MB/s  "
        f"{p.messages_per_second:,.0f} messages/s  behind {p.lag_bytes:,} bytes, {p.lag_ms:,} ms"
    )


def _logfmt(value: object) -> str:
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    return json.dumps(text) if " " in text or "=" in text or not text else text


def _size(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    value = parse_bytes(text)
    if not value:
        raise ConfigError(f"{option} {text!r} is not a positive size in bytes (or 64m, 1g)")
    return value
