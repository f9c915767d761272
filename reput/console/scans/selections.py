"""Pending messages with what filters select of them, kept for the pages that follow."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from store.io.spilled_totals import GroupTotals
    from store.pending.find_pending import Pending, PendingFilter

    Selection = tuple[NDArray[np.uint32], GroupTotals]

_KEPT_MAX = 4  # selections of one scan
_SELECTING = threading.Lock()  # a selection takes memory, so one is made at a time


class Selections:
    """Pending messages, and what the last filters selected of them. Threads may share it."""

    def __init__(self, found: Pending) -> None:
        self.found = found
        self._kept: dict[PendingFilter, Selection] = {}  # the last one was made last

    def select(self, wanted: PendingFilter) -> Selection:
        """Return the positions of the wanted rows, in order, and their summary."""
        kept = self._kept.get(wanted)
        if kept is not None:
            return kept
        with _SELECTING:
            kept = self._kept.get(wanted)
            if kept is None:
                kept = self._select(wanted)
                for oldest in [*self._kept][: 1 - _KEPT_MAX]:
                    del self._kept[oldest]
                self._kept[wanted] = kept
        return kept

    def _select(self, wanted: PendingFilter) -> Selection:
        from store.pending.find_pending import wanted_rows  # noqa: PLC0415 - loads pyarrow

        chosen = wanted_rows(self.found.rows, wanted).astype("u4")
        counted = self.found.rows.select(["topic", "due_timestamp", "state"]).take(chosen)
        return chosen, replace(self.found, rows=counted).summary()
