"""The end of the index at an offset of the log, so that the index can be truncated to it.

See ``store.consumequeue.queue_ends``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from store.index.file import is_index_file_name
from store.io.checked_json import Check, MismatchError

INDEX_HEADER_FIELDS = 6


def _is_index_file_or_none(name: str) -> bool:
    return not name or is_index_file_name(name)


def _is_index_header(header: tuple[int, ...]) -> bool:
    if len(header) != INDEX_HEADER_FIELDS:
        return not header
    slot_count, index_count = header[-2:]
    return -(1 << 31) <= slot_count < 1 << 31 and 1 <= index_count < 1 << 31


IndexFileOrNone = Annotated[
    str, Check("an index file's name (17 digits), or empty", _is_index_file_or_none)
]
HeaderFields = Annotated[tuple[int, ...], Check("an index file's header", _is_index_header)]


@dataclass(frozen=True, slots=True)
class IndexEnd:
    """The newest index file and its header's fields, in on-disk order; "" and () without files."""

    file: IndexFileOrNone = ""
    header: HeaderFields = ()

    def check_fields(self) -> None:
        """Raise MismatchError for a file without its header, or a header without its file."""
        if bool(self.file) != bool(self.header):
            reason = f"it has {len(self.header)} fields for index file {self.file!r}"
            raise MismatchError(reason, "header")
