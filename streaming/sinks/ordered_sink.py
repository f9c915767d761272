"""The base of all sinks: applies the log in order, part by part, and nothing after a failure.

A batch is what becomes durable at once; it arrives in one part or several. Damage ends what a batch
accepts: all before it becomes durable, then it is raised.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from store.commitlog.dispatch_request import DispatchRequests, concat
from store.commitlog.scanner import Damage, Stretch
from store.errors import StoreError

MESSAGES_PER_QUEUE_MIN = 64  # in a part of a batch that does not wait


class StoppedError(StoreError):
    """A batch was not applied because its query is being stopped. Not a failure."""


@dataclass(frozen=True, slots=True)
class SinkCounts:
    """What a sink has done since it was opened."""

    batches: int = 0
    messages: int = 0
    bytes: int = 0
    durable_to: int = 0  # the offset of the log up to which it is durable
    last_store_timestamp: int = 0
    apply_seconds: float = 0.0
    expired_files: int = 0  # deleted, because the log now begins after all they refer to


class BatchSink(ABC):
    """Applies stretches of the log from offset ``at`` on. One thread calls at a time.

    ``damage`` is what the last batch ended before, once all before it is durable.
    """

    counts: SinkCounts
    name: ClassVar[str]  # as in "the dispatch is being stopped"

    def __init__(self, at: int) -> None:
        self.error: StoreError | None = None  # of a batch, or of closing
        self.damage: Damage | None = None
        self._at = at
        self._has_begun = False  # a batch
        self._found: Damage | None = None  # in the batch
        self._end_error: StoreError | None = None
        self._lock = threading.Lock()
        self._ending = self._closed = False

    def apply(self, stretches: Iterable[Stretch]) -> None:
        """Apply one batch, or the rest of one; it is durable when this returns.

        Raises the damage found in the batch, after making all before it durable. After that, as
        after any failure, the sink accepts nothing more.
        """
        self._take(stretches, is_last=True)

    def apply_part(self, stretches: Iterable[Stretch]) -> None:
        """Apply the next part of a batch, which ``apply`` completes and makes durable.

        Raises as ``apply``, except for the damage.
        """
        self._take(stretches, is_last=False)

    def applied_to(self) -> int:
        """Return the offset up to which the log has been applied, including parts of a batch."""
        return self._at

    def is_blocked(self) -> bool:
        """Return whether the sink accepts nothing more, because of damage or an error."""
        return self.error is not None or self._found is not None

    def _take(self, stretches: Iterable[Stretch], *, is_last: bool) -> None:
        with self._lock:
            if self._ending:
                raise StoppedError(f"the {self.name} is being stopped")
            if self.error is not None:
                raise self.error
            try:
                self._apply_part(in_log_order(stretches))
                if is_last:
                    self._complete()
            except StoppedError:
                raise
            except StoreError as e:
                self.error = e
                raise
            except BaseException as e:
                self.error = StoreError(f"a batch of the {self.name} was not applied: {e!r}")
                raise

    def stop_waiting(self) -> None:  # noqa: B027 - most sinks never wait
        """Fail a batch that waits for an external system: its query is about to end."""

    def close(self) -> None:
        """Wait for the batch in flight, and close. Every call raises the StoreError of closing."""
        self._ending = True
        self.stop_waiting()
        with self._lock:
            if not self._closed:
                self._closed = True
                try:
                    self._end()
                except StoreError as e:
                    self._end_error = e
                    self.error = self.error or e
        if self._end_error is not None:
            raise self._end_error

    def _apply_part(self, stretches: list[Stretch]) -> None:
        """Apply the records of a part that follow, up to damage."""
        if not self._has_begun:
            self._begin()
            self._has_begun = True
        if self._found is not None:
            return
        requests, lost, self._found = take_following(stretches, self._at, self._skippable)
        self._at = max([self._at, *(r.end for r in requests), *(gap.end for gap in lost)])
        self._put(requests, lost)

    def _complete(self) -> None:
        """Make the batch durable. Raises the damage in it."""
        self._finish()
        self._has_begun = False
        self.damage = self._found
        if self.damage is not None:
            raise self._error_of(self.damage)

    def _begin(self) -> None:  # noqa: B027 - most sinks check nothing
        """Check, before the first part of a batch, that it may follow the last one."""

    def _skippable(self, damage: Damage) -> Damage | None:
        """Return how much of a damage to skip, as ``take_following`` does."""
        return None

    def _error_of(self, damage: Damage) -> StoreError:
        """Return the error for damage that ends what the sink accepts."""
        return damage.error()

    @abstractmethod
    def _put(self, requests: list[DispatchRequests], lost: list[Damage]) -> None:
        """Apply adjacent requests and skipped gaps, up to ``applied_to()``."""

    @abstractmethod
    def _finish(self) -> None:
        """Apply what waits for the end of the batch, and make the batch durable."""

    @abstractmethod
    def _end(self) -> None:
        """Release the resources of the sink."""


class WaitingParts:
    """The requests of a batch that are too few for their queues to be passed on yet.

    Reaching a queue's file costs as much as many messages: a part of a batch with few messages for
    each of its queues waits for the parts that follow it.
    """

    def __init__(self) -> None:
        self._waiting: list[DispatchRequests] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, requests: list[DispatchRequests]) -> list[DispatchRequests]:
        """Add requests; return what need not wait any longer, as one item or none."""
        if requests:
            self._waiting = [concat([*self._waiting, *requests])]
            (part,) = self._waiting
            if len(part) >= MESSAGES_PER_QUEUE_MIN * len(part.topics):
                return self.take()
        return []

    def take(self) -> list[DispatchRequests]:
        """Return all that is waiting, as one item or none."""
        taken, self._waiting = self._waiting, []
        return taken


def in_log_order(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Return stretches sorted by their position in the log."""
    return sorted(stretches, key=lambda s: (s.begin, s.end))


def take_following(
    stretches: Iterable[Stretch], at: int, skippable: Callable[[Damage], Damage | None]
) -> tuple[list[DispatchRequests], list[Damage], Damage | None]:
    """Split the stretches after offset ``at`` into requests, gaps to skip, and fatal damage.

    ``skippable`` returns how much of a damage to skip, from its begin; None if it is fatal. If that
    is not all of it, the result ends there, and the caller scans the log from there on. Raises
    StoreError if a part of the log between two stretches is missing.
    """
    requests: list[DispatchRequests] = []
    lost: list[Damage] = []
    for stretch in stretches:
        if stretch.end <= at:
            continue
        if isinstance(stretch, Damage):
            gap = skippable(stretch)
            if gap is None:
                return requests, lost, stretch
            lost.append(replace(gap, begin=max(gap.begin, at)))
            if gap.end < stretch.end:
                break
        else:
            if stretch.begin > at:
                raise StoreError(
                    f"a batch begins at offset {stretch.begin}, but only the log up to {at} has "
                    "been applied: the range between is missing"
                )
            part = stretch.starting_at(at)
            if len(part) and part.begin != at and stretch.begin < at:
                raise StoreError(f"offset {at} is inside a record: the log changed")
            requests.append(part)
        at = stretch.end
    return requests, lost, None
