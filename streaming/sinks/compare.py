"""The sink of ``reput verify``: compares stretches of the log with the files of a root."""

from __future__ import annotations

from dataclasses import replace

from store.commitlog.commit_log import ReportProgress
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.replay import cannot_derive
from store.commitlog.scanner import Damage, Stretch
from store.compare.store import StoreComparison
from streaming.sinks.ordered_sink import (
    BatchSink,
    SinkCounts,
    WaitingParts,
    take_following,
)


class CompareSink(BatchSink):
    """Compares batches with a root; ``at`` is the offset up to which the log has been compared."""

    name = "comparison"
    takes_parts = True

    def __init__(
        self, comparison: StoreComparison, span: tuple[int, int], report: ReportProgress | None
    ) -> None:
        super().__init__()
        self._comparison = comparison
        self._span = span
        self._report = report
        self._waiting = WaitingParts()
        self._damage: Damage | None = None
        self.at = span[0]
        self.counts = SinkCounts()

    def begin(self, offset: int) -> None:
        """Continue at ``offset``: the range before it was lost."""
        self.at = offset

    def applied_to(self) -> int:
        """Return the offset up to which the log has been compared."""
        return self.at

    def is_blocked(self) -> bool:
        """Return whether damage or an error has ended the comparison."""
        return self.error is not None or self._damage is not None

    def _apply_part(self, stretches: list[Stretch]) -> None:
        """Compare a part of a batch, up to damage."""
        if self._damage is not None:
            return
        requests, _, self._damage = take_following(stretches, self.at, lambda _: None)
        if requests:
            self.at = requests[-1].end
        self._compare(self._waiting.add(requests))

    def _compare(self, parts: list[DispatchRequests]) -> None:
        for part in parts:
            self._comparison.put(part)
            self.counts = replace(
                self.counts,
                batches=self.counts.batches + 1,
                messages=self.counts.messages + len(part),
                reput_from_offset=part.end,
            )

    def _apply(self, stretches: list[Stretch]) -> None:
        """Compare the rest of a batch. Raises DamageError after comparing all before the damage."""
        self._apply_part(stretches)
        self._compare(self._waiting.take())
        if self._damage is not None:
            raise cannot_derive(self._damage)
        if self._report is not None:
            self._report(self.at - self._span[0], self._span[1] - self._span[0])

    def _end(self) -> None:
        """Do nothing: a comparison holds no resources."""
