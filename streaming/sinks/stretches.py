"""Taking a micro-batch's stretches in log order: what follows on, what is lost, where to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Damage
from store.errors import StoreError

Stretch = DispatchRequests | Damage


def in_log_order(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Return stretches as they lie in the log."""
    return sorted(stretches, key=lambda s: (s.begin, s.end))


def take_following(
    stretches: Iterable[Stretch], at: int, may_skip: Callable[[int], bool]
) -> tuple[list[DispatchRequests], list[Damage], Damage | None]:
    """Split what lies behind offset ``at`` into requests, gaps to skip, and the damage that stops.

    ``may_skip`` tells whether to go on behind damage at an offset. Raises StoreError if a part of
    the log between is missing.
    """
    requests: list[DispatchRequests] = []
    lost: list[Damage] = []
    for stretch in stretches:
        if stretch.end <= at:
            continue
        if isinstance(stretch, Damage):
            if not may_skip(stretch.begin):
                return requests, lost, stretch
            lost.append(replace(stretch, begin=max(stretch.begin, at)))
        else:
            if stretch.begin > at:
                raise StoreError(
                    f"a batch begins at offset {stretch.begin}, all up to {at} has been done: "
                    "what lies between is missing"
                )
            part = stretch.starting_at(at)
            if len(part) and part.begin != at and stretch.begin < at:
                raise StoreError(f"offset {at} is inside a record: the log changed")
            requests.append(part)
        at = stretch.end
    return requests, lost, None
