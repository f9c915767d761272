"""The sink of ``reput verify``: compares stretches of the log with queues and index."""

from __future__ import annotations

from dataclasses import replace

from store.commitlog.commit_log import ReportProgress
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.parallel_scan import cannot_derive
from store.commitlog.scanner import Damage
from store.compare.store import StoreComparison
from store.errors import DamageError
from streaming.sinks.ordered_sink import BatchSink, SinkCounts, WaitingParts


class CompareSink(BatchSink):
    """Compares a span of the log with queues and index."""

    name = "comparison"

    def __init__(
        self, comparison: StoreComparison, span: tuple[int, int], report: ReportProgress | None
    ) -> None:
        super().__init__(span[0])
        self._comparison = comparison
        self._span = span
        self._report = report
        self._waiting = WaitingParts()
        self.counts = SinkCounts()

    def begin(self, offset: int) -> None:
        """Continue at ``offset``: the range before it was lost."""
        self._at = offset

    def _put(self, requests: list[DispatchRequests], _lost: list[Damage]) -> None:
        self._compare(self._waiting.add(requests))

    def _compare(self, parts: list[DispatchRequests]) -> None:
        for part in parts:
            self._comparison.put(part)
            self.counts = replace(
                self.counts,
                batches=self.counts.batches + 1,
                messages=self.counts.messages + len(part),
            )

    def _finish(self) -> None:
        self._compare(self._waiting.take())
        if self._report is not None:
            self._report(self._at - self._span[0], self._span[1] - self._span[0])

    def _error_of(self, damage: Damage) -> DamageError:
        return cannot_derive(damage)

    def _end(self) -> None:
        """Do nothing: a comparison holds no resources."""
