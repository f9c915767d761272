"""The memory of all answers in flight: a budget, of which each holds a lease until it is sent.

An answer leases ``WORK_BYTES`` before its work begins, more first if it is known to need more, and
its own size once it is made. It is sent in slices, and ``send`` waits while the client does not
read, so the lease ends when at most about two slices wait in the transport. An answer that finds no
room waits; after ``_WAIT_SECONDS`` it is refused with 503. What leases more than ``WORK_BYTES``
leaves a quarter to the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MEBIBYTE = 1024 * 1024
BUDGET_BYTES = 256 * MEBIBYTE
WORK_BYTES = 8 * MEBIBYTE  # an ordinary answer while it is made
STREAM_BYTES = MEBIBYTE // 4  # an answer that is made while it is sent
SLICE_BYTES = 64 * 1024
_RESERVED = 4  # one part in this many is reserved for small answers
_WAIT_SECONDS = 10.0
_RETRY_SECONDS = 5
_FREE = ("/healthz", "/livez", "/static/")  # small, or read from a file in slices
_LEASE = "reput.lease"  # in the scope of a request
_TOO_MANY = "the answers in flight fill the console's memory; try again later"

Refuse = Callable[[str, HTTPStatus, str], Response]


class Budget:
    """The bytes that answers may hold. Used in the event loop only."""

    def __init__(self, size: int = BUDGET_BYTES) -> None:
        self.size = size
        self.used = 0
        self._given = asyncio.Event()

    @property
    def large_max(self) -> int:
        """The most bytes that a large answer may wait for."""
        return self.size - self.size // _RESERVED

    async def take(self, size: int, *, is_large: bool = False) -> None:
        """Take bytes; wait until that many are free. Raises HTTPException (503)."""
        end = self.large_max if is_large else self.size
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while self.used + size > end:
                    await self._given.wait()
        except TimeoutError:
            headers = {"Retry-After": str(_RETRY_SECONDS)}
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, _TOO_MANY, headers) from None
        self.used += size

    def give(self, size: int) -> None:
        """Return bytes, and let the waiting answers try again, in order of arrival."""
        self.used -= size
        self._given.set()
        self._given = asyncio.Event()


class Lease:
    """The part of the budget that one answer holds: ``size`` bytes."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    async def grow(self, size: int) -> None:
        """Hold ``size`` bytes before they exist. Raises HTTPException (503).

        An answer that needs more than ``large_max`` waits until it is the only one.
        """
        size = min(size, self._budget.large_max)
        if size > self.size:
            await self._budget.take(size - self.size, is_large=size > WORK_BYTES)
            self.size = size

    def settle(self, size: int) -> None:
        """Hold exactly ``size`` bytes, which exist already, without a wait."""
        self._budget.give(self.size - size)
        self.size = size


def lease_of(request: Request) -> Lease:
    """Return the lease of a request's answer."""
    lease: Lease = request.scope[_LEASE]
    return lease


class Leases:
    """The middleware that leases the memory of each answer, and sends the answer in slices.

    ``refuse`` makes the answer to a request whose path, status and reason it is given.
    """

    def __init__(self, app: ASGIApp, budget: Budget, refuse: Refuse) -> None:
        self._app = app
        self._budget = budget
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"].startswith(_FREE):
            await self._app(scope, receive, send)
            return
        lease = scope[_LEASE] = Lease(self._budget)
        is_stream = False

        async def send_slices(message: Message) -> None:
            nonlocal is_stream
            body, more_body = message.get("body", b""), message.get("more_body", False)
            is_stream |= more_body
            if body and not is_stream:
                lease.settle(len(body))
            view = memoryview(body)
            while len(view) > SLICE_BYTES:
                await send({**message, "body": view[:SLICE_BYTES], "more_body": True})
                view = view[SLICE_BYTES:]
            await send({**message, "body": view} if body else message)

        try:
            await lease.grow(WORK_BYTES)
        except HTTPException as e:
            response = self._refuse(scope["path"], HTTPStatus(e.status_code), e.detail)
            response.headers.update(e.headers or {})
            await response(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send_slices)
        finally:
            lease.settle(0)
