"""Shared by commands that run a query until they are stopped: signals, Spark, progress lines."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.live import Live
from rich.text import Text

from reput.cli.lines import seconds_text
from store.printable import printable, size_text
from streaming.spark.spark_settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streaming.queries.query_metrics import DispatchProgress

POLL_SECONDS = 0.2
_LOGGED_SECONDS = 10.0  # between two lines of progress in a log
MEGA = 1e6


def start_spark(name: str, settings: SparkSettings, stop: threading.Event) -> SparkSession:
    """Start Spark, and replace its SIGINT handler before a signal can reach it."""
    from streaming.spark.session import build_session

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        spark = build_session(name, settings.master, settings.conf)
        _handle_signals(stop)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return spark


def _handle_signals(stop: threading.Event) -> dict[signal.Signals, Any]:
    """Make SIGINT and SIGTERM set an event; return the previous handlers."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    return {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Make SIGINT and SIGTERM set the yielded event while inside."""
    stop = threading.Event()
    old = _handle_signals(stop)
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def end_within(seconds: float) -> None:
    """End the process with exit code 0 after some seconds, whatever its threads wait for.

    For a process that only reads: a thread may be stuck in a file system that does not answer.
    """
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()


def end_at_once() -> NoReturn:
    """End the process with exit code 0, without finalizing the interpreter.

    For a process that only reads: a thread that computes in native code may crash when it returns
    into an interpreter that is being finalized.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@dataclass
class LineReporter:
    """Reports events: text and a live line on a terminal, else log lines or JSON objects."""

    is_live: bool
    as_json: bool = False
    begin_offset: int = 0  # physical; where the percentage starts

    def __post_init__(self) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._began = time.monotonic()
        self._has_ended = False
        self._logged: dict[object, float] = {}  # when progress was last logged, by broker

    def say(self, event: str, text: str, **fields: object) -> None:
        """Report an event: a terminal gets the text, a log the fields."""
        if self.as_json:
            # One write: several threads report.
            print(json.dumps({"event": event, **fields}) + "\n", end="", flush=True)
        elif self.is_live:
            self._console.print(Text(printable(text)))
        else:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            pairs = " ".join(f"{k}={_logfmt(v)}" for k, v in fields.items())
            print(f"{stamp} {event} {pairs}", file=sys.stderr, flush=True)

    def show_line(self, text: str) -> None:
        """Start the live line, if on a terminal."""
        if self.is_live:
            self._live = Live(_live(text), console=self._console, transient=True)
            self._live.start()

    def start(self) -> None:
        """Start the clock: the query is running."""
        self._began = time.monotonic()
        if self._live is not None:
            self._live.update(_live("waiting for the log"))

    def show_progress(self, text: str, **fields: object) -> None:
        """Show a progress report; ignored after the end. A log gets one every 10 s, JSON all."""
        if self._has_ended:
            return
        if self._live is not None:
            self._live.update(_live(text))
        elif not self.is_live and (self.as_json or self._is_time_to_log(fields.get("broker"))):
            self.say("progress", text, **fields)

    def _is_time_to_log(self, broker: object) -> bool:
        now = time.monotonic()
        if now - self._logged.get(broker, -math.inf) < _LOGGED_SECONDS:
            return False
        self._logged[broker] = now
        return True

    def end_line(self) -> float:
        """End the live line; return the seconds since the start."""
        self._has_ended = True
        if self._live is not None:
            self._live.stop()
        return time.monotonic() - self._began


def progress_line(p: DispatchProgress, begin_offset: int) -> str:
    """Return a progress report as one line of at most 80 columns."""
    rate = f"{size_text(p.bytes_per_second)}/s  {p.messages_per_second:,.0f} messages/s"
    if not p.lag_bytes:
        return f"offset {p.reput_from_offset:,}  {rate}  up to date"
    done = p.reput_from_offset - begin_offset
    text = f"{_percent(done, done + p.lag_bytes)}  {rate}  behind {size_text(p.lag_bytes)}"
    text += f", {seconds_text(p.lag_ms / 1000)}" if p.lag_ms else ""
    return text + _time_left(p.lag_bytes, p.bytes_per_second)


def _percent(done: int, total: int) -> str:
    return f"{max(done, 0) * 100 // max(total, 1)}%"


def _time_left(left: int, bytes_per_second: float) -> str:
    return f"  {seconds_text(left / bytes_per_second)} left" if bytes_per_second > 0 else ""


def _live(text: str) -> Text:
    return Text("\n".join(map(printable, text.split("\n"))), no_wrap=True, overflow="ellipsis")


def _logfmt(value: object) -> str:
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    is_plain = text.isprintable() and not any(c in text for c in ' ="')
    return text if text and is_plain else json.dumps(text)
