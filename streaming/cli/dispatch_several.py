"""``reput dispatch STORE… --output-root DIR``: one query per broker, all in one Spark session.

A broker that fails ends its own query. The others continue; the final exit code shows the failure.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from streaming.cli.dispatch_report import Reporter
from streaming.cli.lines import say
from streaming.cli.long_running import POLL_SECONDS, LineReporter, start_spark, stop_signals
from streaming.cli.metrics import (
    MetricsOptions,
    ShownDispatch,
    metrics_endpoint,
    show_dispatch,
    show_failure,
)
from streaming.cli.recover import recovery_progress
from streaming.cli.stores import Failures, NamedStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streaming.queries.dispatch import DispatchOptions, PreparedDispatch, RunningDispatch
    from streaming.web.metrics.endpoint import MetricsEndpoint
    from streaming.web.metrics.query import BatchDurations


class Board(LineReporter):
    """Reports several dispatches: on a terminal, one live line for each broker."""

    def begin(self, names: Sequence[str]) -> None:
        """Show the brokers: Spark is starting."""
        self._lines = dict.fromkeys(names, "")
        self.show_line("starting Spark")

    def show_broker(self, name: str, text: str, fields: Mapping[str, object]) -> None:
        """Show the progress of one broker."""
        self._lines[name] = text
        shown = [f"{name}: {line}" for name, line in self._lines.items() if line]
        self.show_progress("\n".join(shown), **fields, broker=name)


@dataclass
class BrokerReporter(Reporter):
    """Reports one of several dispatches; each event names the broker."""

    name: str = ""
    board: Board = field(default_factory=lambda: Board(is_live=False))

    def say(self, event: str, text: str, **fields: object) -> None:
        """Report an event of this broker."""
        self.board.say(event, f"{self.name}: {text}", **fields, broker=self.name)

    def show_line(self, text: str) -> None:
        """Do nothing: the board has the live lines."""

    def show_progress(self, text: str, **fields: object) -> None:
        """Show a progress report; ignored after the end."""
        if not self._has_ended:
            self.board.show_broker(self.name, text, fields)


@dataclass
class _Query:
    """The dispatch of one broker, from its preparation to its end."""

    store: NamedStore
    reporter: BrokerReporter
    durations: BatchDurations
    prepared: PreparedDispatch
    running: RunningDispatch | None = None
    has_ended: bool = False


class SeveralDispatches:
    """The dispatches of several stores into ``output_root/<broker>``."""

    def __init__(
        self,
        stores: Sequence[NamedStore],
        output_root: Path,
        options: DispatchOptions,
        board: Board,
    ) -> None:
        self._stores, self._output_root, self._options = stores, output_root, options
        self._board = board
        self._failures = Failures(self._report_failure)
        self._queries: list[_Query] = []
        self._endpoint: MetricsEndpoint | None = None

    def run(self, session: MetricsOptions, stuck_after: float) -> None:
        """Run all queries until they have ended or are stopped; exit with the code of a failure.

        Raises ConfigError, SparkError, which concern all of them.
        """
        settings = session.spark_settings()
        with metrics_endpoint(session, self._board) as endpoint, self._prepared():
            self._endpoint = endpoint
            for store in self._stores:
                self._prepare(store, stuck_after)
            if self._queries:
                with stop_signals() as stop:
                    for query in self._queries:
                        query.reporter.begin(query.prepared)
                    self._board.begin([query.store.name for query in self._queries])
                    spark = start_spark("reput dispatch", settings, stop)
                    try:
                        self._run_queries(spark, stop)
                    finally:
                        spark.stop()
        failed = self._failures.names
        if failed:
            count, total = len(failed), len(self._stores)
            say(f"reput: {count} of {total} dispatches failed: {', '.join(failed)}")
        self._failures.exit()

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        """Release the roots of the queries that have not been started, whatever happens."""
        try:
            yield
        finally:
            self._board.end_line()
            for query in self._queries:
                if query.running is None:
                    with self._failures.of(query.store.name):
                        query.prepared.close()

    def _prepare(self, store: NamedStore, stuck_after: float) -> None:
        from streaming.queries.dispatch import prepare_dispatch
        from streaming.web.metrics.query import BatchDurations

        board, durations = self._board, BatchDurations()
        reporter = BrokerReporter(board.is_live, board.as_json, name=store.name, board=board)
        with self._failures.of(store.name):
            with recovery_progress(is_shown=board.is_live) as report:
                options = replace(
                    self._options,
                    on_progress=reporter.report,
                    on_batch=durations.observe,
                    on_recovery=report,
                )
                output = self._output_root / store.name
                prepared = prepare_dispatch(store.store_root, output, options)
            self._queries.append(_Query(store, reporter, durations, prepared))
            if self._endpoint is not None:
                shown = ShownDispatch(prepared, durations, name=store.name)
                show_dispatch(self._endpoint, shown, stuck_after)

    def _run_queries(self, spark: SparkSession, stop: threading.Event) -> None:
        try:
            for query in self._queries:
                if stop.is_set():
                    query.reporter.end_early(query.prepared)
                    continue
                with self._failures.of(query.store.name):
                    query.running = query.prepared.start(spark)
                    query.reporter.start()
            self._board.start()
            started = [query for query in self._queries if query.running is not None]
            while any(not query.has_ended for query in started) and not stop.wait(POLL_SECONDS):
                for query in started:
                    if not query.has_ended and not _is_active(query):
                        self._end(query, stop)
        finally:
            self._end_all(stop)

    def _end_all(self, stop: threading.Event) -> None:
        """Stop the queries that run, all at once: each may have a batch in flight."""
        running = [q for q in self._queries if q.running is not None and not q.has_ended]
        if running:
            with ThreadPoolExecutor(len(running)) as pool:
                for _ in pool.map(lambda query: self._end(query, stop), running):
                    pass

    def _end(self, query: _Query, stop: threading.Event) -> None:
        """Stop a query, unless it has ended, and report how it ended."""
        running = query.running
        assert running is not None
        query.has_ended = True
        with self._failures.of(query.store.name):
            was_active = running.query.isActive
            try:
                running.close()
            finally:
                query.reporter.end(running)
            is_expected = was_active or stop.is_set() or self._options.available_now
            running.raise_failure(is_end_expected=is_expected)

    def _report_failure(self, name: str, error: Exception) -> None:
        if self._endpoint is not None:
            show_failure(self._endpoint, name, error)
        kind = type(error).__name__
        self._board.say("failed", f"{name}: {error}", error=kind, reason=str(error), broker=name)


def _is_active(query: _Query) -> bool:
    return query.running is not None and query.running.query.isActive
