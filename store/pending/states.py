"""The rows of an answer on pending messages: their columns, kinds and states.

Unique key and keys of a message are in the log alone, and are read for the rows that are shown.

========================  =========================================================================
column                    meaning
========================  =========================================================================
kind                      ``delay`` (a delay level), ``timer``, ``half`` (of a transaction)
state                     see below
topic, queue_id           where the message is, or is to be, delivered
store_timestamp           when the oldest copy in the log was stored, epoch ms
due_timestamp             when the broker delivers the message, or first checks the half message
commit_log_offset         of the newest copy that the broker holds
delivered_commit_log_…    of the delivered message, null unless ``delivered``
checks                    how often the broker has asked for a half message's end; else null
========================  =========================================================================

``waiting``: held, and not due. ``overdue``: held, and due. ``delivered``: the log holds the message
in its own queue. ``cancelled``: a transaction was rolled back, or a timer message cancelled.
``given up``: the broker will not deliver it: it was checked too often, or passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.pending.deliveries import NONE, Longs


class Kind(StrEnum):
    """Why a message is held back."""

    DELAY = "delay"
    TIMER = "timer"
    HALF = "half"


class State(StrEnum):
    """What became of a message."""

    WAITING = "waiting"
    OVERDUE = "overdue"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    GIVEN_UP = "given up"


STATES = tuple(State)
UNFINISHED = (State.WAITING, State.OVERDUE)

_NUMBERED = pa.dictionary(pa.int32(), pa.string())
PENDING_FIELDS = pa.schema(
    [
        ("kind", _NUMBERED),
        ("state", _NUMBERED),
        ("topic", _NUMBERED),
        ("queue_id", pa.int64()),
        ("store_timestamp", pa.int64()),
        ("due_timestamp", pa.int64()),
        ("commit_log_offset", pa.int64()),
        ("delivered_commit_log_offset", pa.int64()),
        ("checks", pa.int64()),
    ]
)


def longs(table: pa.Table, name: str, missing: int = NONE) -> Longs:
    """Return a column of integers; ``missing`` stands for null."""
    values: Longs = pc.fill_null(table[name].cast(pa.int64()), missing).to_numpy()
    return values


def pending_rows(  # noqa: PLR0913 - one column each
    kind: Kind,
    newest: pa.Table,
    *,
    stored: Longs,
    due: Longs,
    delivered: Longs,
    states: NDArray[np.int64],
    checks: Longs | None = None,
) -> pa.Table:
    """Return the rows of messages, given the newest copy of each; ``states`` index STATES."""
    count = newest.num_rows
    columns = [
        _numbered(np.zeros(count, np.int32), [kind]),
        _numbered(states.astype(np.int32), STATES),
        newest["real_topic"],
        pc.coalesce(newest["real_queue_id"], newest["queue_id"].cast(pa.int64())),
        pa.array(stored),
        pa.array(due, mask=due == NONE),
        newest["commit_log_offset"],
        pa.array(delivered, mask=delivered == NONE),
        pa.nulls(count, pa.int64()) if checks is None else pa.array(checks),
    ]
    return pa.Table.from_arrays(columns, schema=PENDING_FIELDS)


def _numbered(numbers: NDArray[np.int32], values: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(numbers, pa.array([*map(str, values)]))


def choose_states(
    due: Longs,
    now: int,
    *,
    delivered: Longs,
    cancelled: NDArray[np.bool_] | None = None,
    given_up: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """Return the index in STATES of each message; a delivery excludes any other end."""
    none = np.zeros(len(due), np.bool_)
    conditions = [
        delivered != NONE,
        none if given_up is None else given_up,
        none if cancelled is None else cancelled,
        due < now,
    ]
    choices = [State.DELIVERED, State.GIVEN_UP, State.CANCELLED, State.OVERDUE]
    chosen = np.select(conditions, [STATES.index(s) for s in choices], STATES.index(State.WAITING))
    return chosen.astype(np.int64)
