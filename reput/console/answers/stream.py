"""Answers that are made while they are sent, so that large ones take little memory."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from itertools import chain
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from reput.console.answers.budget import SLICE_BYTES, STREAM_BYTES, WORK_BYTES, lease_of

_JSON = "application/json"
_LONG = 100  # elements of a list


def _nothing() -> None:
    pass


class Stream(StreamingResponse):
    """A streamed answer; ``on_close`` is called in any case, once its client is gone.

    From the start it leases ``lease_bytes``: what exists of it at a time.
    """

    def __init__(
        self,
        parts: AsyncGenerator[str | bytes],
        media_type: str,
        *,
        headers: Mapping[str, str] | None = None,
        on_close: Callable[[], None] = _nothing,
        lease_bytes: int = STREAM_BYTES,
    ) -> None:
        super().__init__(parts, media_type=media_type, headers=headers)
        self._parts = parts
        self._on_close = on_close
        self._lease_bytes = lease_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts; for HEAD only the headers."""
        lease_of(Request(scope)).settle(self._lease_bytes)
        try:
            if scope["method"] == "HEAD":
                await Response(headers=dict(self.headers))(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)
        finally:
            self._on_close()

    async def stream_response(self, send: Send) -> None:
        """Send the parts, then close their generator in any case."""
        async with aclosing(self._parts):
            await super().stream_response(send)


def json_answer(data: Mapping[str, Any]) -> Response:
    """Return an object as JSON, in ASCII: lone surrogates have no other form."""
    return text_answer(json_parts(data), 2 * WORK_BYTES)


def text_answer(texts: Iterator[str], lease_bytes: int) -> Response:
    """Return the texts of a JSON answer.

    What exceeds ``WORK_BYTES`` is encoded while it is sent; then the answer leases that many bytes.
    """
    begin, size = [], 0
    for text in texts:
        begin.append(text)
        size += len(text)
        if size > WORK_BYTES:
            return Stream(gathered(chain(begin, texts)), _JSON, lease_bytes=lease_bytes)
    return Response("".join(begin), media_type=_JSON)


def json_parts(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the JSON text of an object in parts: of its values, and of the elements of its lists.

    An element that is an object is divided in the same way if it has a long list.
    """
    separator = "{"
    for name, value in data.items():
        yield f"{separator}{json.dumps(name)}: "
        separator = ", "
        if isinstance(value, list | tuple) and value:
            yield from _element_parts(value)
        else:
            yield json.dumps(value)
    yield "}" if data else "{}"


def _element_parts(values: Iterable[Any]) -> Iterator[str]:
    separator = "["
    for value in values:
        yield separator
        separator = ", "
        if isinstance(value, dict) and any(map(_is_long, value.values())):
            yield from json_parts(value)
        else:
            yield json.dumps(value)
    yield "]"


def _is_long(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > _LONG


async def gathered(texts: Iterable[str]) -> AsyncGenerator[str]:
    """Yield texts as parts of about a slice."""
    part, size = [], 0
    for text in texts:
        part.append(text)
        size += len(text)
        if size >= SLICE_BYTES:
            yield "".join(part)
            part, size = [], 0
    yield "".join(part)
