"""Half messages: the records of ``RMQ_SYS_TRANS_HALF_TOPIC``, in its queue 0.

The end of a transaction names a half message by its offset. A commit stores the message in its real
queue, flagged as committed and with the half message's commit log offset, then an OP message; a
rollback stores only the OP message. An OP message (``RMQ_SYS_TRANS_OP_HALF_TOPIC``, tag ``d``)
holds the queue offset of a half message, since 5.1 several, separated by commas, up to three
seconds after the end: a broker killed before that checks the half message again.

To check a half message, the broker stores it again, with the count of checks in
``TRANSACTION_CHECK_TIMES``: this copy replaces the one before. One that was checked too often, or
is too old, is moved to ``TRANS_CHECK_MAX_TIME_TOPIC``. With ``CHECK_IMMUNITY_TIME_IN_SECONDS``, a
copy may be stored without a check: ``TRAN_PREPARED_QUEUE_OFFSET`` then names the first one, and an
OP message for that one ends the copy too (``TransactionalMessageServiceImpl``).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store.layout import SYS_COMMIT, SYS_TRANSACTION
from store.pending.deliveries import NONE, Longs, newest_of
from store.pending.states import Kind, choose_states, longs, pending_rows

_MAX = np.iinfo(np.int64).max


def half_rows(  # noqa: PLR0913 - the tables of all that decides
    held: pa.Table,
    messages: Longs,
    *,
    committed: tuple[pa.Table, ...],
    given_up: Longs,
    ended: pa.Table,
    timeout_ms: int,
    now: int,
) -> pa.Table:
    """Return one row per half message, however often it was checked.

    ``committed`` are tables of records that may be commits, ``given_up`` the codes of messages that
    the broker moved away.
    """
    offset = longs(held, "commit_log_offset")
    first, newest, places = newest_of(messages, offset)
    copies = held.take(pa.array(newest))
    delivered = _first_commits(committed, offset, places, len(newest))
    cancelled = _is_ended(copies, ended)
    due = _first_check(copies, timeout_ms)
    states = choose_states(
        due,
        now,
        delivered=delivered,
        cancelled=cancelled,
        given_up=np.isin(messages[newest], given_up),
    )
    return pending_rows(
        Kind.HALF,
        copies,
        stored=longs(held, "store_timestamp_ms")[first],
        due=due,
        delivered=delivered,
        states=states,
        checks=longs(copies, "check_times", 0),
    )


def _first_commits(tables: tuple[pa.Table, ...], half: Longs, places: Longs, count: int) -> Longs:
    """Return the offset of the first commit of any copy of each message, or NONE.

    ``half`` holds the offsets of the copies, ascending, ``places`` the message of each.
    """
    found = np.full(count, _MAX, np.int64)
    for table in tables:
        is_commit = (longs(table, "sys_flag") & SYS_TRANSACTION) == SYS_COMMIT
        prepared = longs(table, "prepared_transaction_offset")[is_commit]
        offsets = longs(table, "commit_log_offset")[is_commit]
        if not len(half) or not len(prepared):
            continue
        at = np.minimum(np.searchsorted(half, prepared), len(half) - 1)
        is_known = half[at] == prepared
        np.minimum.at(found, places[at[is_known]], offsets[is_known])
    return np.where(found == _MAX, NONE, found)


def _is_ended(copies: pa.Table, ended: pa.Table) -> NDArray[np.bool_]:
    """Return which newest copies a later OP message ends."""
    queue_offset, prepared = longs(copies, "queue_offset"), longs(copies, "prepared_queue_offset")
    if not ended.num_rows:
        return np.zeros(copies.num_rows, np.bool_)
    order = np.lexsort((longs(ended, "commit_log_offset"), longs(ended, "queue_offset")))
    ends, at = longs(ended, "queue_offset")[order], longs(ended, "commit_log_offset")[order]
    mask = np.zeros(copies.num_rows, np.bool_)
    for wanted, after in (
        (queue_offset, longs(copies, "commit_log_offset")),
        (prepared, np.full(copies.num_rows, NONE, np.int64)),
    ):
        last = np.searchsorted(ends, wanted, "right") - 1
        inside = np.maximum(last, 0)
        mask |= (last >= 0) & (ends[inside] == wanted) & (at[inside] > after)
    return mask


def _first_check(copies: pa.Table, timeout_ms: int) -> Longs:
    """Return when the broker first checks each message (``TransactionalMessageUtil``)."""
    own_ms = longs(copies, "check_immunity", 0) * 1000
    return longs(copies, "born_timestamp_ms") + np.maximum(own_ms, timeout_ms)
