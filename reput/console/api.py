"""The objects of the pages that show a whole broker, a topic or the groups."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from importlib.metadata import version
from typing import Any

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from reput.console.brokers import Broker
from reput.console.metrics.history import INTERVAL_SECONDS
from reput.console.overview import Listing
from reput.console.parameters import choice, number, text
from store.commitlog.message_json import message_summary
from store.config import StoreConfig, setting_name
from store.consumequeue.names import is_system_topic
from store.errors import ConfigError, StoreError
from store.layout import ABORT_FILE, DLQ_PREFIX, RETRY_PREFIX
from store.reads.message_store import MessageStore
from store.topics.queue_state import QueueState, describe_queues
from store.topics.topics_json import config_json, file_json, lag_json, queue_json

_PAGE_ROWS = 100
_TOP_GROUPS = 20
_SORTS = ("topic", "messages", "bytes", "latest", "rate")
_SORT_FIELDS = {"latest": "latest_timestamp", "rate": "messages_per_second"}
_NEWEST, _SAMPLED, _SAMPLED_QUEUES = 20, 64, 16  # messages shown, looked at per queue, queues
_TAGS_MAX, _DAMAGES_MAX = 100, 1000  # shown
_PAGES_MAX = 1_000_000


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


def history(request: Request) -> dict[str, Any]:
    """Return the figures of the last hour, or those later than the time ``since`` (epoch ms)."""
    broker, since = broker_of(request), number(request.query_params, "since") or 0
    columns = broker.history.columns(since)
    return {"broker": broker.name, "interval_ms": int(INTERVAL_SECONDS * 1000), **columns}


# --- the overview --------------------------------------------------------------------------------


def overview(request: Request) -> dict[str, Any]:
    """Return a broker's topics and the groups with the most lag; topics are null until listed."""
    broker, params = broker_of(request), request.query_params
    listing, wanted = broker.overview.get(), text(params, "filter") or ""
    sort = choice(params, "sort", _SORTS)
    found = _topic_rows(broker, listing, wanted)
    shows_all = params.get("system") == "1"
    rows = [row for row in found if shows_all or not row["is_internal"]]
    if sort != "topic":
        field = _SORT_FIELDS.get(sort, sort)
        rows.sort(key=lambda row: -(row[field] or 0))
    known = listing.overview if listing is not None else None
    lagging, groups_problem = _known_groups(listing)
    levels = known.delay_levels if known is not None else ()
    return {
        "broker": broker.name,
        "status": broker.status(),
        "as_of_ms": None if listing is None else listing.as_of_ms,
        **_paged(request, rows, "topics", is_known=known is not None),
        "hidden": len(found) - len(rows),
        "filter": wanted,
        "sort": sort,
        "groups": None if lagging is None else lagging[:_TOP_GROUPS],
        "groups_total": None if lagging is None else len(lagging),
        "groups_problem": groups_problem,
        "delay_levels": [{"level": level, **lag_json(lag)} for level, lag in levels],
        "config_files": [file_json(file) for file in (known.files if known else ())],
        "links": [str(link) for link in (known.links if known else ())],
    }


def groups(request: Request) -> dict[str, Any]:
    """Return the groups with their lag by topic; null until listed."""
    broker, params = broker_of(request), request.query_params
    listing, wanted = broker.overview.get(), text(params, "filter") or ""
    found, groups_problem = _known_groups(listing)
    rows = [g for g in found or () if _contains(wanted, g["group"], g["topic"])]
    return {
        "broker": broker.name,
        "as_of_ms": None if listing is None else listing.as_of_ms,
        "status": broker.status(),
        **_paged(request, rows, "groups", is_known=found is not None),
        "groups_problem": groups_problem,
        "filter": wanted,
    }


def group(request: Request) -> dict[str, Any]:
    """Return a consumer group: its lag by topic and by queue, its retry and dead-letter topics.

    Topics and queues are null until listed. Raises HTTPException (404, 503).
    """
    broker, name = broker_of(request), request.path_params["group"]
    listing = broker.overview.get()
    known, groups_problem = _known_groups(listing)
    if groups_problem is not None:
        raise HTTPException(503, groups_problem)
    is_known = known is not None
    subscribed = [g for g in known or () if g["group"] == name]
    own = _own_topics(name, [g["topic"] for g in subscribed])
    made = [row for row in (listing.topics if listing else ()) if row["topic"] in own]
    if is_known and not subscribed and not made:
        raise HTTPException(404, "no offset of this group is committed, and it has no retry topic")
    queues = [row for g in subscribed for row in g["by_queue"]]
    export = "--not-consumed-by", name, "--to", "DIRECTORY"
    return {
        "broker": broker.name,
        "group": name,
        "as_of_ms": None if listing is None else listing.as_of_ms,
        "status": broker.status(),
        "topics": [_without_queues(g) for g in subscribed] if is_known else None,
        "own_topics": [
            {field: row[field] for field in ("topic", "messages", "latest_timestamp")}
            for row in made
        ],
        **_paged(request, queues, "queues", is_known=is_known),
        "commands": [broker.command("export", *export), broker.command("topics")],
    }


def _without_queues(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "by_queue"}


def _own_topics(group: str, topics: list[str]) -> set[str]:
    """Return the topics of a group's retries and dead letters that may exist.

    Java parity: KeyBuilder.buildPopRetryTopicV1 and V2 name one for each topic that it pops.
    """
    retry = RETRY_PREFIX + group
    popped = {f"{retry}{separator}{topic}" for topic in topics for separator in "_+"}
    return {retry, DLQ_PREFIX + group, *popped}


def _topic_rows(broker: Broker, listing: Listing | None, wanted: str) -> list[dict[str, Any]]:
    if listing is None or listing.overview is None:
        return []
    rates = broker.monitor.rates()
    return [
        row
        | {
            "bytes": broker.overview.topic_bytes(state.queues),
            "messages_per_second": rates.get(state.topic, 0.0),
        }
        for row, state in zip(listing.topics, listing.overview.topics, strict=True)
        if _contains(wanted, state.topic)
    ]


def _contains(wanted: str, *names: str) -> bool:
    """Return whether a name contains a text, in upper or lower case."""
    return not wanted or any(wanted.casefold() in name.casefold() for name in names)


def _paged(
    request: Request, rows: list[dict[str, Any]], name: str, *, is_known: bool = True
) -> dict[str, Any]:
    """Return the page of rows that the query names; an empty one if there are fewer pages."""
    page = number(request.query_params, "page", low=1, high=_PAGES_MAX) or 1
    begin = (page - 1) * _PAGE_ROWS
    return {
        name: rows[begin : begin + _PAGE_ROWS] if is_known else None,
        "page": page,
        "pages": max(-(-len(rows) // _PAGE_ROWS), 1),
        "total": len(rows),
    }


# --- a topic -------------------------------------------------------------------------------------


def topic(request: Request) -> dict[str, Any]:
    """Return a topic: its queues, groups, tags and newest messages."""
    broker, name = broker_of(request), request.path_params["topic"]
    listing = broker.overview.get()
    known = listing.overview if listing is not None else None
    lagging, groups_problem = _known_groups(listing)
    state = next((t for t in (known.topics if known else ()) if t.topic == name), None)
    config = state.config if state is not None else None
    with broker.queues() as store:
        # Listing the queues of one topic takes long, too, if they are many.
        queues = state.queues if state is not None else ()
        ids = [queue.queue_id for queue in queues] or store.queue_ids(name)
        if not ids and config is None:
            raise HTTPException(404, "the store has no queue and no configuration of this topic")
        paged = _paged(request, [{"queue_id": i} for i in ids], "queues")
        states = describe_queues(store, name, [row["queue_id"] for row in paged["queues"]])
        newest, tags = _newest(store, states)
    return {
        "broker": broker.name,
        "topic": name,
        "is_system": is_system_topic(name),
        "config": config_json(config),
        **paged,
        "queues": [
            queue_json(q) | {"bytes": broker.overview.queue_bytes(name, q.queue_id)} for q in states
        ],
        "groups": None if lagging is None else [g for g in lagging if g["topic"] == name],
        "groups_problem": groups_problem,
        "tags": [{"tag": tag, "count": count} for tag, count in tags.most_common(_TAGS_MAX)],
        "tags_sampled": tags.total(),
        "newest": [{**summary, "broker": broker.name} for summary in newest],
        "status": broker.status(),
    }


def _known_groups(
    listing: Listing | None,
) -> tuple[tuple[dict[str, Any], ...] | None, str | None]:
    """Return all groups, None if they are not known; and why their offsets cannot be read."""
    if listing is None or listing.overview is None:
        return None, None
    problem = listing.overview.groups_problem
    return (None, problem) if problem else (listing.groups, None)


def _newest(
    store: MessageStore, queues: Iterable[QueueState]
) -> tuple[list[dict[str, Any]], Counter[str | None]]:
    """Return summaries of the newest messages of some queues, and the tags of some more.

    The newest message is first. Damaged queues have none. Few messages exist at a time.
    """
    summaries: list[dict[str, Any]] = []
    tags: Counter[str | None] = Counter()
    readable = [q for q in queues if q.damage is None and q.max_offset > q.min_offset]
    for queue in sorted(readable, key=lambda q: -q.latest_timestamp)[:_SAMPLED_QUEUES]:
        at = max(queue.min_offset, queue.max_offset - _SAMPLED)
        try:
            while at < queue.max_offset:
                result = store.get_message(queue.topic, queue.queue_id, at)
                if not result.messages:
                    break
                tags.update(message.tags for message in result.messages)
                at = result.next_begin_offset
                newest = result.messages[-_NEWEST:] if at + _NEWEST > queue.max_offset else ()
                summaries += map(message_summary, newest)
        except StoreError:
            continue  # the queue's own state reports it, if it is not the message alone
    summaries.sort(key=lambda m: -m["commit_log_offset"])
    return summaries[:_NEWEST], tags


# --- health --------------------------------------------------------------------------------------


def health(request: Request) -> dict[str, Any]:
    """Return what is wrong with a broker's store, and its settings."""
    broker = broker_of(request)
    listing, settings = broker.overview.get(), broker.settings
    damages = [] if listing is None else [*listing.damages]
    try:
        damages = [*broker.damages(), *damages]
    except StoreError as e:  # the log cannot be listed
        damages.append(e)
    is_clean = not (broker.store_root / ABORT_FILE).exists()
    return {
        "broker": broker.name,
        "status": broker.status(),
        "damage": _damages_json(damages, broker.monitor.error()),
        "rebuild_command": broker.build_command(),
        "verify": broker.verification(),
        "settings": settings_json(broker.config),
        "versions": {
            "reput": version("rocketmq-reput"),
            "python": platform.python_version(),
            "broker rules": str(broker.config.version),
        },
        "paths": {
            "store": str(broker.store_root),
            "output": str(broker.output),
            "commit log": [str(p) for p in broker.config.commit_log_paths(broker.store_root)],
        },
        "limits": {
            "max_body_bytes": settings.max_body_bytes,
            "searches": settings.searches_max,
            "searches_of_a_client": settings.client_searches_max,
            "tails": settings.tails_max,
            "stuck_after_seconds": settings.stuck_after,
        },
        "last_close": "clean" if is_clean else "not clean, or the broker is running",
        "files": broker.overview.files,
    }


def settings_json(config: StoreConfig) -> dict[str, Any]:
    """Return the settings of a store by their names in broker.conf."""
    names = [f.name for f in fields(config) if f.name != "answers"]  # no settings of files
    values = {setting_name(name): getattr(config, name) for name in names}
    return {**values, "version": str(config.version)}


def _damages_json(errors: list[StoreError], further: str | None) -> list[dict[str, str]]:
    """Return errors as JSON values, up to a limit, and the texts that follow them."""
    shown = [{"text": str(e), "hint": getattr(e, "hint", "")} for e in errors[:_DAMAGES_MAX]]
    left = len(errors) - len(shown)
    texts = (f"and {left:,} more" if left else None, further)
    return shown + [{"text": text, "hint": ""} for text in texts if text]


async def healthz(request: Request) -> Response:
    """Answer "ok", or 503 with the names of the brokers whose dispatch is stuck."""
    shown: dict[str, Broker] = request.app.state.brokers

    def problems() -> list[str]:
        return [f"{name}: {problem}" for name, b in shown.items() if (problem := _problem(b))]

    return _probed(await to_thread.run_sync(problems))


async def livez(request: Request) -> Response:
    """Answer "ok", or 503 with what hangs, which a restart may cure.

    The event loop answers: if it hangs, nothing does. A dispatch that is stuck, a store that cannot
    be read, slow clients and expensive conditions are no hangs.
    """
    state = request.app.state
    watched = {f"{name}: the log": b.monitor for name, b in state.brokers.items()}
    watched |= {"searches": state.searches, "pages": state.readers}
    silent = {name: part.silent_seconds() for name, part in watched.items()}
    limit = state.settings.hung_after
    return _probed([f"{name}: silent for {s:.0f} s" for name, s in silent.items() if s > limit])


def _probed(problems: list[str]) -> Response:
    return PlainTextResponse("\n".join(problems or ["ok"]) + "\n", 503 if problems else 200)


def _problem(broker: Broker) -> str:
    try:
        broker.check_log()
        return f"stuck for more than {broker.settings.stuck_after:g} s" if broker.is_stuck() else ""
    except StoreError as e:
        return "misconfigured" if isinstance(e, ConfigError) else "cannot be read"
