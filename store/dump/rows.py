"""The rows of a dump: one for each structure found in a file, in file order.

Two kinds of row stand for no structure. ``damage`` gives the position of an unreadable structure,
the reason, and the position of the next readable one; ``end`` gives the end of the written data.
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
# The fields of each kind of row, in order, with their meanings.
Meanings = Mapping[str, Mapping[str, str]]

NOTE = "anything unusual about it"

COMMON_MEANINGS: Meanings = {
    DAMAGE: {
        "path": "the file",
        "offset": "offset in the stream that the file is part of",
        "reason": "what is wrong",
        "next_at": "position in the file of the next readable structure, if any",
    },
    END: {
        "offset": "offset in the stream that the file is part of",
        "size": "bytes left in the file",
        "reason": "why nothing more is read",
    },
}


@dataclass(frozen=True, slots=True)
class Row:
    """One structure: its kind, its position in the file, and its fields by name.

    Times are in ms and named ``…_timestamp``; a field that does not apply is None.
    """

    kind: str
    at: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """The file to dump.

    ``base`` is its first offset in its stream, ``start`` the position in the file to start at.
    """

    path: Path
    view: NDArray[np.uint8]
    base: int
    config: StoreConfig
    start: int = 0

    def damage(self, at: int, reason: str, next_at: int | None) -> Row:
        """Return a ``damage`` row."""
        fields = {
            "path": str(self.path),
            "offset": self.base + at,
            "reason": reason,
            "next_at": next_at,
        }
        return Row(DAMAGE, at, fields)

    def end(self, at: int, reason: str) -> Row:
        """Return an ``end`` row."""
        left = len(self.view) - at
        return Row(END, at, {"offset": self.base + at, "size": left, "reason": reason})


# The parts of a file, dumped one after another; only an index has more than one.
Sections = tuple[Iterator[Row], ...]
