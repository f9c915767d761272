"""Runs the queries of ``reput dispatch`` and ``mirror``, in one Spark session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from reput.cli.long_running import POLL_SECONDS, LineReporter, start_spark, stop_signals
from reput.cli.stores import Failures
from store.errors import SparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streaming.queries.dispatch_query import PreparedDispatch, RunningDispatch
    from streaming.queries.mirror_query import PreparedMirror, RunningMirror
    from streaming.spark.spark_settings import SparkSettings

    Running = RunningDispatch | RunningMirror


class QueryReporter(Protocol):
    """Reports one query; each method but ``start`` takes the prepared query."""

    def begin(self, prepared: Any) -> None:
        """Report the settings and where the query begins."""

    def start(self) -> None:
        """Start the clock: the query is running."""

    def end_early(self, prepared: Any) -> None:
        """Report that the query was stopped before it started."""

    def end(self, prepared: Any) -> None:
        """Report the result."""


@dataclass
class Query:
    """A query from its preparation to its end."""

    prepared: PreparedDispatch | PreparedMirror
    reporter: QueryReporter
    has_end: bool  # ends by itself, at the end of the log
    name: str = ""  # of its broker, among several
    running: Running | None = None
    has_ended: bool = False


@dataclass
class QueryRunner:
    """Runs queries; leaving it releases those that have not been started.

    A failure goes to ``failures``, which raises that of the only query.
    """

    board: LineReporter  # has the live line
    failures: Failures = field(default_factory=Failures)
    queries: list[Query] = field(default_factory=list)

    def __enter__(self) -> QueryRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.board.end_line()
        for query in self.queries:
            if query.running is None:
                with self.failures.of(query.name):
                    query.prepared.close()

    def run(
        self,
        title: str,
        settings: SparkSettings,
        meanwhile: Callable[[threading.Event], None] | None = None,
    ) -> None:
        """Run the queries until they have ended or are stopped, or ``meanwhile`` returns.

        ``meanwhile`` gets the event that SIGINT and SIGTERM set. Raises SparkError.
        """
        with stop_signals() as stop:
            for query in self.queries:
                query.reporter.begin(query.prepared)
            self.board.show_line("starting Spark")
            spark = start_spark(title, settings, stop)
            try:
                self._start(spark, stop)
                if self._running():
                    (meanwhile or self._wait)(stop)
            finally:
                try:
                    self._end_all(stop)
                finally:
                    spark.stop()

    def _start(self, spark: SparkSession, stop: threading.Event) -> None:
        for query in self.queries:
            if stop.is_set():
                query.reporter.end_early(query.prepared)
                continue
            with self.failures.of(query.name):
                query.running = query.prepared.start(spark)
                query.reporter.start()
        self.board.start()

    def _wait(self, stop: threading.Event) -> None:
        while self._running() and not stop.wait(POLL_SECONDS):
            for query, running in self._running():
                if not running.query.isActive:
                    self._end(query, running, stop)

    def _running(self) -> list[tuple[Query, Running]]:
        found = ((query, query.running) for query in self.queries if not query.has_ended)
        return [(query, running) for query, running in found if running is not None]

    def _end_all(self, stop: threading.Event) -> None:
        """Stop the queries that run, all at once: each may have a batch in flight."""
        left = self._running()
        if left:
            with ThreadPoolExecutor(len(left)) as pool:
                for _ in pool.map(lambda one: self._end(one[0], one[1], stop), left):
                    pass

    def _end(self, query: Query, running: Running, stop: threading.Event) -> None:
        """Stop a query, unless it has ended, and report how it ended."""
        query.has_ended = True
        with self.failures.of(query.name):
            was_active = running.query.isActive
            try:
                running.close()
            finally:
                query.reporter.end(query.prepared)
            error = running.query.failure()
            if error is None and not (was_active or stop.is_set() or query.has_end):
                error = SparkError("Spark ended the query without giving a reason")
            if error is not None:
                raise error
