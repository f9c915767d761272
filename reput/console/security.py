"""Who may ask what: the Host check, HTTP Basic, methods, and the headers of every answer.

A page of another site can make a browser send requests here. The Host check stops DNS rebinding,
``Sec-Fetch-Site`` requests from other sites, except links that a user follows to a page; those are
marked (``FROM_LINK``), and routes that scan the log or send a download do not begin for them.
Nothing is changed by a request, and no answer can be read or framed by another site.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import secrets
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reput.console.pages import FROM_LINK, json_response
from store.commitlog.compression import BODY_BYTES_MAX

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_STATIC_CACHE = "private, max-age=300"
_METHODS = ("GET", "HEAD")
_PROBES = ("/healthz", "/livez")  # need no token
_QUERY_BYTES_MAX = 8 * 1024
_QUERY_VALUES_MAX = 200
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_SITES = ("same-origin", "none")  # a page of the console, or the user; older browsers send nothing


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Who may connect, and the limits. Times are in seconds, sizes in bytes.

    ``token`` is the password of HTTP Basic, None for no authentication. ``allowed_hosts`` are the
    names in lower case that a request's Host may have.
    """

    allowed_hosts: frozenset[str] = LOOPBACK_NAMES
    token: str | None = None
    max_body_bytes: int = BODY_BYTES_MAX
    stuck_after: float = 60.0
    searches_max: int = 4
    client_searches_max: int = 3
    tails_max: int = 200
    hung_after: float = 120.0


class Security:
    """Refuses what is not allowed, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        is_static = scope["path"].startswith("/static/")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers["Cache-Control"] = _STATIC_CACHE if is_static else "no-store"
            await send(message)

        answer = self._refusal(scope) or self._app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return why a request is refused, None if it is not."""
        headers, path = Headers(scope=scope), scope["path"]
        if host_name(headers.get("host", "")) not in self._settings.allowed_hosts:
            text = "this name is not one of the console's; reput serve --allowed-host adds it"
            return refuse(path, HTTPStatus.MISDIRECTED_REQUEST, text)
        if scope["method"] not in _METHODS:
            response = refuse(path, HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed")
            response.headers["Allow"] = ", ".join(_METHODS)
            return response
        query: bytes = scope["query_string"]
        if len(query) > _QUERY_BYTES_MAX or query.count(b"&") >= _QUERY_VALUES_MAX:
            text = f"the query has more than {_QUERY_BYTES_MAX} bytes or {_QUERY_VALUES_MAX} values"
            return refuse(path, HTTPStatus.REQUEST_URI_TOO_LONG, text)
        is_foreign = headers.get("sec-fetch-site", "none") not in _SITES
        if is_foreign:
            if not _is_link(path, headers):
                text = "the console does not answer other sites"
                return refuse(path, HTTPStatus.FORBIDDEN, text)
            scope[FROM_LINK] = True
        if path not in _PROBES and not self._has_token(headers):
            response = refuse(path, HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
            response.headers["WWW-Authenticate"] = 'Basic realm="reput", charset="UTF-8"'
            return response
        return None

    def _has_token(self, headers: Headers) -> bool:
        """Return whether the password of HTTP Basic is the token, with any user name."""
        token = self._settings.token
        if token is None:
            return True
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            _, _, password = base64.b64decode(credentials, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return False
        return secrets.compare_digest(password, token.encode())


def _is_link(path: str, headers: Headers) -> bool:
    """Return whether a request from another site is a link that a user follows to a page."""
    is_page = path == "/" or path.startswith("/brokers/")
    how = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return is_page and how == ("navigate", "document")


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_name(host: str) -> str:
    """Return the name in a Host header in lower case, "" if it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises ValueError if it is not a port
    except ValueError:
        return ""
    is_plain = parts.netloc == host and parts.username is None and host.isprintable()
    return (parts.hostname or "") if is_plain else ""


def refuse(path: str, status: HTTPStatus, text: str) -> Response:
    """Return the answer to a request that no route matches."""
    if path.startswith("/api/"):
        return json_response({"error": text, "status": status, "parameter": None}, status)
    return PlainTextResponse(f"{text}\n", status)
