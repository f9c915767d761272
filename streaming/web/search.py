"""Searches in the log: as JSON, as server-sent events, and as downloads."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from streaming.web.api import broker_of
from streaming.web.pages import json_response, render
from streaming.web.settings import ConsoleSettings


class SearchSlots:
    """The searches that run at a time."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings

    def close(self) -> None:
        """Stop all searches."""


async def page(request: Request) -> Response:
    """Render the form; the results stream in."""
    return render(request, "messages.html", {"broker": broker_of(request).name, "messages": None})


async def messages(request: Request) -> Response:
    """Answer a search."""
    data = {"broker": broker_of(request).name, "messages": [], "searched_bytes": 0,
            "total_bytes": 0, "is_complete": True, "elapsed_ms": 0, "next": None}  # fmt: skip
    return json_response(data)
