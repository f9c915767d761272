"""Timer messages, since 5.0: the records of ``rmq_sys_wheel_timer``, in its queue 0.

``TIMER_OUT_MS`` is when the message is due. One that is due after the wheel's window is rolled: the
broker (``TimerMessageStore``) stores it again in the same topic, with its born time and unique key.
A record with ``TIMER_DEL_UNIQKEY`` is no message: in the same slot of the wheel it cancels the
message with the unique key that it names; since 5.3.2 it names the real topic, ``+`` and the unique
key.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.config import StoreConfig
from store.pending.deliveries import NONE, Deliveries, Longs, newest_of
from store.pending.states import Kind, choose_states, longs, pending_rows

_NAMES_TOPIC = (5, 3, 2)


def timer_rows(  # noqa: PLR0913 - the records, and what decides on them
    held: pa.Table,
    messages: Longs,
    deliveries: Deliveries,
    *,
    config: StoreConfig,
    precision_ms: int,
    now: int,
) -> pa.Table:
    """Return one row per timer message, however often it was rolled; none for a cancellation."""
    is_message = pc.is_null(held["timer_delete"])
    cancels = held.filter(pc.invert(is_message))
    messages, held = messages[is_message.to_numpy()], held.filter(is_message)
    offset = longs(held, "commit_log_offset")
    first, newest, _ = newest_of(messages, offset)
    copies = held.take(pa.array(newest))
    due = longs(copies, "timer_out")
    delivered = deliveries.first_after(messages[first], offset[first], due)
    cancelled = _is_cancelled(copies, cancels, due // precision_ms, (config, precision_ms))
    states = choose_states(due, now, delivered=delivered, cancelled=cancelled & (delivered == NONE))
    stored = longs(held, "store_timestamp_ms")[first]
    return pending_rows(
        Kind.TIMER, copies, stored=stored, due=due, delivered=delivered, states=states
    )


def _is_cancelled(
    copies: pa.Table, cancels: pa.Table, slots: Longs, rules: tuple[StoreConfig, int]
) -> NDArray[np.bool_]:
    """Return which messages a cancellation of the same slot names."""
    config, precision_ms = rules
    key = copies["uniq_key"]
    if config.version >= _NAMES_TOPIC:
        key = pc.binary_join_element_wise(copies["real_topic"], key, "+")
    named = _in_slot(cancels["timer_delete"], longs(cancels, "timer_out") // precision_ms)
    mask: NDArray[np.bool_] = (
        pc.is_in(_in_slot(key, slots), value_set=named).to_numpy(zero_copy_only=False)
        if cancels.num_rows
        else np.zeros(copies.num_rows, np.bool_)
    )
    return mask


def _in_slot(key: pa.ChunkedArray, slot: Longs) -> pa.Array:
    """Return keys with their slots; empty for a message without a key, which none can name."""
    joined = pc.binary_join_element_wise(pa.array(slot).cast(pa.string()), key, "\x01")
    return pc.fill_null(joined, "").combine_chunks()
