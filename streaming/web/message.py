"""The object of one message, and the download of its body."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from store.commitlog.record import Message
from store.reads.message_json import message_json
from streaming.web.api import broker_of
from streaming.web.pages import load
from streaming.web.parameters import parse_number


def message(request: Request) -> dict[str, Any]:
    """Return a message by its commit log offset."""
    broker = broker_of(request)
    found = _find(request)
    return {"broker": broker.name, **message_json(found)}


async def body(request: Request) -> Response:
    """Return the decompressed body as a download."""
    data = await load(request, lambda r: {"body": _find(r).read_body()})
    name = f"{request.path_params['broker']}-{request.path_params['offset']}.bin"
    return _download(data["body"], name)


def _find(request: Request) -> Message:
    offset = parse_number("offset", request.path_params["offset"])
    found = broker_of(request).log.look_message_by_offset(offset)
    if found is None:
        raise HTTPException(404, f"no message begins at commit log offset {offset}")
    return found


def _download(data: bytes, name: str) -> Response:
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    headers = {"Content-Disposition": f'attachment; filename="{safe}"'}
    return Response(data, media_type="application/octet-stream", headers=headers)
