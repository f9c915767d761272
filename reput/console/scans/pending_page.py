"""The page of pending messages, and its JSON twin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.datastructures import QueryParams
from starlette.requests import Request

from reput.console.api import broker_of
from reput.console.brokers import damage_texts
from reput.console.parameters import ParameterError, choice, number, text

if TYPE_CHECKING:
    from reput.console.scans.selections import Selections
    from store.pending.find_pending import PendingFilter

PARAMETERS = ("page", "topic", "kind", "state")
_STATES = ("unfinished", "overdue", "all")
_PAGE_ROWS, _PAGES_MAX = 100, 1_000_000
_SUMMARY_MAX = 200  # rows


def pending(request: Request) -> dict[str, Any]:
    """Return a broker's pending messages; null until they have been read."""
    broker, params = broker_of(request), request.query_params
    wanted, topic = _filter(params), text(params, "topic") or ""
    page = number(params, "page", low=1, high=_PAGES_MAX) or 1
    scan = broker.pending.get()
    if scan is not None and scan.error is not None:
        raise scan.error
    answer: dict[str, Any] = {
        "broker": broker.name,
        "as_of_ms": None if scan is None else scan.as_of_ms,
        "topic": topic,
        "kind": text(params, "kind") or "",
        "state": choice(params, "state", _STATES),
        "messages": None,
        "page": page,
        "pages": 1,
        "total": 0,
        "summary": [],
        "summary_total": 0,
        "damage": [],
        "left_out": [],
    }
    if scan is None or scan.answer is None:
        return answer
    return answer | _shown(scan.answer, wanted, page)


def _shown(selections: Selections, wanted: PendingFilter, page: int) -> dict[str, Any]:
    """Return what a page shows; only its own rows are copied."""
    found, (chosen, summary) = selections.found, selections.select(wanted)
    shown = found.rows.take(chosen[(page - 1) * _PAGE_ROWS : page * _PAGE_ROWS])
    return {
        "messages": list(replace(found, rows=shown).read_rows()),
        "pages": max(-(-len(chosen) // _PAGE_ROWS), 1),
        "total": len(chosen),
        "summary": [
            {name: value for name, value in row.items() if value != 0 or name == "hour"}
            for row in summary.rows(0, _SUMMARY_MAX)
        ],
        "summary_total": summary.count,
        "damage": damage_texts(found.damages),
        "left_out": found.notes(),
    }


def _filter(params: QueryParams) -> PendingFilter:
    """Parse the conditions. Raises ParameterError."""
    from store.pending.find_pending import PendingFilter  # noqa: PLC0415 - loads pyarrow
    from store.pending.states import Kind  # noqa: PLC0415 - likewise

    topic, kind = text(params, "topic"), text(params, "kind")
    state = choice(params, "state", _STATES)
    if kind is not None and kind not in list(Kind):
        raise ParameterError("kind", f"not one of {', '.join(Kind)}")
    return PendingFilter(
        topics=frozenset(() if topic is None else (topic,)),
        kinds=frozenset(() if kind is None else (Kind(kind),)),
        only_overdue=state == "overdue",
        with_finished=state == "all",
    )
