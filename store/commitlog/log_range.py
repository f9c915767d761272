"""A range of the commit log: what a plan hands to whoever scans it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogRange:
    """``[begin, end)`` of the log, in one file; ``gap`` says why nothing can be read there.

    ``is_lost``: the log has no bytes for the gap. Otherwise they are damaged. A range that does
    not begin ``at_record`` is about the records that begin in it.
    """

    begin: int
    end: int
    path: str
    base: int
    gap: str = ""
    is_lost: bool = False
    at_record: bool = True
