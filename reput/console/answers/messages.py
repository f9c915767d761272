"""Messages as texts of an answer: a line of JSON, a row of CSV, or a summary.

A text comes in parts. A body of more than ``_LARGE_BYTES`` is decompressed and encoded part by
part, so that a message takes little memory whatever its size.
"""

from __future__ import annotations

import csv
import io
import json
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from store.commitlog.message_json import (
    BODY_FIELDS,
    JSON_FIELDS,
    body_json,
    message_fields,
    message_summary,
)
from store.commitlog.record import Message
from store.errors import BodyTooLargeError

CSV_FIELDS = ("broker", *JSON_FIELDS, *BODY_FIELDS, "body_error")
_LARGE_BYTES = 1024 * 1024
_PART_BYTES = 64 * 1024
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a formula of a spreadsheet begins

Encode = Callable[[Message], Iterable[str]]


class _Body(NamedTuple):
    """The fields of a body; a large one has ``parts`` in place of ``body``."""

    fields: dict[str, str | None]
    parts: Iterator[str] | None = None


def summary_of(broker: str) -> Encode:
    """Return an encoder of messages as summaries in JSON, each on one line."""
    return lambda m: (json.dumps({**message_summary(m), "broker": broker}),)


def json_of(broker: str, end: str = "") -> Encode:
    """Return an encoder of messages as JSON, each on one line."""

    def encode(message: Message) -> Iterator[str]:
        fields, parts = _body_of(message)
        if parts is None:
            yield json.dumps({**message_fields(message), **fields, "broker": broker}) + end
            return
        yield json.dumps({**message_fields(message), **fields})[:-1] + ', "body": "'
        for part in parts:
            yield json.dumps(part)[1:-1]
        yield f'", "broker": {json.dumps(broker)}}}{end}'

    return encode


def json_without_body(message: Message, broker: str, reason: str) -> str:
    """Return a message as JSON whose body is null, with the reason."""
    fields = {**message_fields(message), **dict.fromkeys(BODY_FIELDS), "body_error": reason}
    return json.dumps({**fields, "broker": broker})


def csv_of(broker: str) -> Encode:
    """Return an encoder of messages as rows of CSV with ``CSV_FIELDS``."""

    def encode(message: Message) -> Iterator[str]:
        body, parts = _body_of(message)
        fields = {**message_fields(message), **body, "broker": broker}
        fields["properties"] = json.dumps(fields["properties"], ensure_ascii=False)
        row = csv_row([fields.get(name) for name in CSV_FIELDS])
        if parts is None:
            yield row
            return
        yield row.removesuffix(",,\r\n") + ',"'  # body and body_error are empty
        first = next(parts)
        yield ("'" if first.startswith(_FORMULA) else "") + first.replace('"', '""')
        for part in parts:
            yield part.replace('"', '""')
        yield '",\r\n'

    return encode


def csv_row(values: Iterable[Any]) -> str:
    """Return a row. Texts that a spreadsheet would take for a formula get an apostrophe."""
    row = io.StringIO()
    csv.writer(row).writerow(
        f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
        for value in values
    )
    return row.getvalue()


def _body_of(message: Message) -> _Body:
    try:
        head = message.body_head(_LARGE_BYTES + 1)
        if len(head) <= _LARGE_BYTES:
            return _Body({**body_json(head)})
        pieces = message.body_pieces()
    except BodyTooLargeError as e:
        return _Body({**dict.fromkeys(BODY_FIELDS), "body_error": str(e)})
    if _is_text(pieces):
        return _Body({"body_encoding": "utf-8"}, _decoded(pieces))
    return _Body({"body_encoding": "hex"}, (part.hex() for part in _parts(pieces)))


def _is_text(pieces: Iterable[bytes]) -> bool:
    try:
        return all("\0" not in part for part in _decoded(pieces))
    except UnicodeDecodeError:
        return False


def _decoded(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the parts of a text. Raises UnicodeDecodeError."""
    decoder = getincrementaldecoder("utf-8")()
    for part in _parts(pieces):
        yield decoder.decode(part)
    yield decoder.decode(b"", final=True)


def _parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        for at in range(0, len(piece), _PART_BYTES):
            yield piece[at : at + _PART_BYTES]
