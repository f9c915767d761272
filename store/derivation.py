"""Deriving dispatch requests from a log again, batch by batch: to compare with them, to rebuild."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from store.commit_log import CommitLog
from store.dispatch_request import DispatchRequests, concat
from store.errors import DamageError
from store.log_plan import LogPlanner
from store.log_range import LogRange
from store.scan import Damage, Scanner

BATCH_BYTES = 32 * 1024 * 1024


class Derivation:
    """Reads stretches ``[begin, end)`` of a log, in order; ``at`` is how far it is.

    ``reason``, if given, says why the log must reach the last stretch's end.
    """

    def __init__(
        self,
        log: CommitLog,
        planner: LogPlanner,
        stretches: Sequence[tuple[int, int]],
        reason: str = "",
    ) -> None:
        self.at = stretches[0][0] if stretches else 0
        self._log = log
        self._planner = planner
        self._scanner = Scanner(log.config)
        self._stretches = stretches
        self._reason = reason

    def batches(self) -> Iterator[DispatchRequests]:
        """Yield the requests. Raises DamageError where the log cannot be read."""
        for begin, end in self._stretches:
            self.at = begin
            while self.at < end:
                plan = self._planner.plan(self.at, max_bytes=BATCH_BYTES, until=end)
                for part in plan.ranges:
                    yield from self._read(part)
                if not plan.ranges:
                    self._check_end()
                    return

    def _read(self, part: LogRange) -> Iterator[DispatchRequests]:
        batch: list[DispatchRequests] = []
        for stretch in self._scanner.read(part):
            if isinstance(stretch, Damage):
                raise DamageError(
                    stretch.path,
                    stretch.begin,
                    stretch.reason,
                    "queues and index cannot be derived from there on; restore the file from a "
                    "replica or a backup",
                )
            batch.append(stretch)
        self.at = part.end
        if batch:
            yield concat(batch)

    def _check_end(self) -> None:
        if self._reason:
            raise DamageError(
                self._log.path_of(self.at),
                self.at,
                f"the log ends here, but {self._reason}",
                "the log was truncated or is another one; dispatch it into a new OUTPUT",
            )
