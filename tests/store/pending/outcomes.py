"""What a broker does with each kind of message that ``tests/integration/java/Hold.java`` sends."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from store.config import load_config
from store.pending.broker_settings import load_hold_settings
from store.pending.find_pending import PendingFilter, find_pending
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch

TOPIC = "Orders"
CHECKS_MAX = 3
OUTCOMES = {
    **dict.fromkeys(("level-1", "level-2", "commit", "late-commit"), "delivered"),
    **dict.fromkeys(("timed-soon", "timed-later"), "delivered"),
    **dict.fromkeys(("rollback", "late-rollback", "timed-cancelled"), "cancelled"),
    **dict.fromkeys(("level-3", "timed-hour"), "waiting"),
    "never": "given up",
}

Rows = Mapping[str, Mapping[str, Any]]


def pending_of(store: Path, conf: Path, version: str, now: int) -> Rows:
    """Return the row of each message by unique key."""
    found = find_pending(
        store,
        load_config(store, conf, version),
        PendingFilter(with_finished=True),
        now=now,
        settings=load_hold_settings(store, conf),
    )
    assert found.damages == ()
    rows = {row["uniq_key"]: row for row in found.read_rows()}
    assert found.rows.num_rows == len(rows)
    return rows


def delivered_in(store: Path, conf: Path, version: str) -> dict[str, list[int]]:
    """Return the offsets of the messages in the real topic, by unique key."""
    config = load_config(store, conf, version)
    found: dict[str, list[int]] = {}
    wanted = MessageFilter(topics=frozenset((TOPIC,)))
    for message in LogSearch(store, config, wanted).messages():
        found.setdefault(message.uniq_key or "", []).append(message.commit_log_offset)
    return found


def check_outcomes(sent: Mapping[str, str], killed: Rows, later: Rows) -> None:
    """Assert that what was said of each message at the kill is what the broker then did."""
    assert sent.keys() == killed.keys() == later.keys()
    assert Counter(OUTCOMES[kind] for kind in sent.values()) == Counter(
        row["state"] for row in later.values()
    )
    for key, kind in sent.items():
        outcome, before = OUTCOMES[kind], killed[key]["state"]
        assert (kind, outcome) == (kind, later[key]["state"])
        # A message that was finished stays so; one that was not is finished by the broker.
        assert before in (outcome, "waiting", "overdue"), kind
        if kind == "never":
            assert later[key]["checks"] == CHECKS_MAX


def check_deliveries(rows: Rows, delivered: Mapping[str, Iterable[int]]) -> None:
    """Assert that exactly the messages in the real topic are said to be delivered, and where."""
    assert delivered.keys() == {k for k, row in rows.items() if row["state"] == "delivered"}
    for key, offsets in delivered.items():
        assert min(offsets) == rows[key]["delivered_commit_log_offset"]
