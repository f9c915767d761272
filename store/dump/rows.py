"""What a dump is made of: rows, one for each structure found in a file, in the file's order.

Two kinds of row are of no structure. ``damage`` tells where one cannot be read, why, and where
the next readable one begins; ``end`` tells that nothing has been written from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.config import StoreConfig

DAMAGE = "damage"
END = "end"
# Of each kind of row its fields in order, with what they mean.
Meanings = Mapping[str, Mapping[str, str]]

NOTE = "what is remarkable about it"

COMMON_MEANINGS: Meanings = {
    DAMAGE: {
        "path": "the file",
        "offset": "where it is in the stream that the file is part of",
        "reason": "what is wrong there",
        "next_at": "position in the file where the next readable structure begins, if any does",
    },
    END: {
        "offset": "where it is in the stream that the file is part of",
        "size": "bytes left in the file",
        "reason": "why nothing more is read",
    },
}


@dataclass(frozen=True, slots=True)
class Row:
    """One structure: its kind, the position in the file it begins at, and its fields by name.

    Times are in ms and named ``…_timestamp``; a field that says nothing here is None.
    """

    kind: str
    at: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """The file that is dumped. ``start`` is the position to begin at.

    ``base`` is the offset in its stream at which it begins.
    """

    path: Path
    view: NDArray[np.uint8]
    base: int
    config: StoreConfig
    start: int = 0

    def damage(self, at: int, reason: str, next_at: int | None) -> Row:
        """Return the row of a damage."""
        fields = {
            "path": str(self.path),
            "offset": self.base + at,
            "reason": reason,
            "next_at": next_at,
        }
        return Row(DAMAGE, at, fields)

    def end(self, at: int, reason: str) -> Row:
        """Return the row of an end."""
        left = len(self.view) - at
        return Row(END, at, {"offset": self.base + at, "size": left, "reason": reason})


# The parts of a file that are read one after the other: one, but for an index.
Sections = tuple[Iterator[Row], ...]
