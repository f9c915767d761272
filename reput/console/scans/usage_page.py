"""The page of what fills the log, and its JSON twin."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request

from reput.console.api import broker_of
from reput.console.brokers import damage_texts
from reput.console.parameters import choice, number
from reput.console.scans.readers import USAGE_BY

PARAMETERS = ("page", "by")
_PAGE_ROWS, _PAGES_MAX = 100, 1_000_000


def usage(request: Request) -> dict[str, Any]:
    """Return what fills a broker's log; ``rows`` is null until it has been counted."""
    broker, params = broker_of(request), request.query_params
    by = choice(params, "by", USAGE_BY)
    page = number(params, "page", low=1, high=_PAGES_MAX) or 1
    found = broker.usage[by].get()
    if found is not None and found.error is not None:
        raise found.error
    answer: dict[str, Any] = {
        "broker": broker.name,
        "as_of_ms": None if found is None else found.as_of_ms,
        "by": by,
        "rows": None,
        "page": page,
        "pages": 1,
        "total": 0,
        "messages": 0,
        "bytes": 0,
        "kinds": [],
        "expiries": [],
        "damage": [],
    }
    if found is None or found.answer is None:
        return answer
    counted, expiring = found.answer
    total = counted.groups.count
    return answer | {
        "rows": list(counted.groups.rows((page - 1) * _PAGE_ROWS, _PAGE_ROWS)),
        "pages": max(-(-total // _PAGE_ROWS), 1),
        "total": total,
        "messages": sum(row["messages"] for row in counted.kinds),
        "bytes": sum(row["bytes"] for row in counted.kinds),
        "kinds": counted.kinds,
        "expiries": [asdict(expiry) for expiry in expiring],
        "damage": damage_texts(counted.damages),
    }
