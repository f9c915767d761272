"""The web console: its routes. Every page is rendered from the object that its JSON twin returns.

The console only reads: no route changes anything, and no method but GET and HEAD is accepted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from reput.console import api, message_view, pages, search_endpoints, tail
from reput.console.answers.budget import Budget, Leases
from reput.console.brokers import Broker
from reput.console.metrics.console import ConsoleSource, metrics
from reput.console.pages import BODIES, LISTS, PENDING, USAGE, View
from reput.console.scans import pending_page, usage_page
from reput.console.search_job import SearchSlots
from reput.console.security import ConsoleSettings, Security, refuse

STATIC = Path(__file__).parent / "static"
_BROKER = "/brokers/{broker}"

_HOME = View("/", "brokers.html", api.brokers)
# The HTML pages; the JSON twin of each is below /api.
VIEWS = (
    View(_BROKER, "overview.html", api.overview, ("page", "filter", "sort", "system"), LISTS),
    View(f"{_BROKER}/groups", "groups.html", api.groups, ("page", "filter")),
    View(f"{_BROKER}/groups/{{group:path}}", "group.html", api.group, ("page",)),
    View(
        f"{_BROKER}/pending", "pending.html", pending_page.pending, pending_page.PARAMETERS, PENDING
    ),
    View(f"{_BROKER}/usage", "usage.html", usage_page.usage, usage_page.PARAMETERS, USAGE),
    View(f"{_BROKER}/topics/{{topic:path}}", "topic.html", api.topic, ("page",)),
    View(f"{_BROKER}/messages/{{offset}}", "message.html", message_view.message, kind=BODIES),
    View(f"{_BROKER}/health", "health.html", api.health),
)


def create_app(brokers: Sequence[Broker], settings: ConsoleSettings) -> Starlette:
    """Return the console of these brokers; its lifespan starts and closes them."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        for broker in brokers:
            broker.start()
        try:
            yield
        finally:
            app.state.searches.close()
            for broker in brokers:
                broker.close()

    budget = Budget()
    app = Starlette(
        routes=_routes(),
        middleware=[
            Middleware(Security, settings=settings),
            Middleware(Leases, budget=budget, refuse=refuse),
        ],
        exception_handlers=pages.ERROR_HANDLERS,
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # it redirects to the request's scheme and host
    app.state.brokers = {broker.name: broker for broker in brokers}
    app.state.metrics = ConsoleSource(brokers)
    app.state.settings = settings
    app.state.budget = budget
    app.state.readers = pages.Readers()
    app.state.searches = SearchSlots(settings)
    app.state.tails = tail.TailSlots(settings.tails_max)
    return app


def _routes() -> list[BaseRoute]:
    return [
        Route("/healthz", api.healthz),
        Route("/livez", api.livez),
        Route("/metrics", metrics),
        Route("/", home),
        *(Route(view.path, pages.page(view)) for view in VIEWS),
        Route(f"{_BROKER}/messages", pages.own_links(search_endpoints.page)),
        Route(f"{_BROKER}/messages/{{offset}}/body", pages.own_links(message_view.body)),
        Route(f"{_BROKER}/tail", pages.own_links(tail.page)),
        Route("/api/brokers", pages.twin(_HOME)),
        *(Route(f"/api{view.path}", pages.twin(view)) for view in VIEWS),
        Route(f"/api{_BROKER}/status", pages.twin(View("", "", api.status))),
        Route(f"/api{_BROKER}/history", pages.twin(View("", "", api.history, ("since",)))),
        Route(f"/api{_BROKER}/messages", search_endpoints.messages),
        Route(f"/api{_BROKER}/tail", tail.follow),
        Mount("/static", StaticFiles(directory=STATIC)),
        Route("/{path:path}/", without_slash),
    ]


async def without_slash(request: Request) -> Response:
    """Redirect to the same path without the slash at its end.

    The address has no scheme and no host: behind a proxy with TLS, those of the request are not
    the browser's. It begins with one slash, as two would begin the name of another host.
    """
    path, query = quote(request.path_params["path"].strip("/")), request.url.query
    return RedirectResponse(f"/{path}?{query}" if query else f"/{path}")


async def home(request: Request) -> Response:
    """Show the brokers; redirect to the only one."""
    names = list(request.app.state.brokers)
    if len(names) > 1:
        return await pages.page(_HOME)(request)
    return RedirectResponse(f"/brokers/{pages.url(names[0])}", HTTPStatus.FOUND)
