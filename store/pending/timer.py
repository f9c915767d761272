"""Timer messages, since 5.0: the records of ``rmq_sys_wheel_timer``, in its queue 0.

``TIMER_OUT_MS`` is when the message is due. One that is due after the wheel's window is rolled: the
broker (``TimerMessageStore``) stores it again in the same topic, with its born time and unique key.
A record with ``TIMER_DEL_UNIQKEY`` is no message: in the same slot of the wheel it cancels the
message with the unique key that it names. In 5.3.2 and 5.3.3, and later with
``appendTopicForTimerDeleteKey``, it names the real topic, ``+`` and the unique key.

A cancellation takes effect when the message is due, in the wheel. A broker that was down at that
time delivers a message that is due and was not yet in its last slot, because it had to be rolled,
even if it was cancelled: once it is due, such a message is overdue, not cancelled.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.config import StoreConfig
from store.pending.broker_settings import HoldSettings
from store.pending.deliveries import Deliveries, Longs, codes, newest_of
from store.pending.held_messages import NAME
from store.pending.states import Kind, choose_states, longs, pending_rows

_HAS_TOPIC, _HAS_TOPIC_IF_SET = (5, 3, 2), (5, 4, 0)


def timer_rows(
    held: pa.Table,
    messages: Longs,
    deliveries: Deliveries,
    *,
    settings: HoldSettings,
    now: int,
) -> pa.Table:
    """Return one row per timer message, however often it was rolled; none for a cancellation."""
    is_cancel = held["is_cancel"].to_numpy()
    cancels = held.filter(pa.array(is_cancel))
    messages, held = messages[~is_cancel], held.filter(pa.array(~is_cancel))
    offset = longs(held, "commit_log_offset")
    first, newest, _ = newest_of(messages, offset)
    copies = held.take(pa.array(newest))
    due = longs(copies, "timer_out")
    delivered = deliveries.first_after(messages[first], offset[first], due)
    cancelled = _is_cancelled(copies, cancels, settings)
    in_last_slot = _in_last_slot(cancels, settings)
    is_certain = _in_last_slot(copies, settings) & _is_cancelled(
        copies, cancels.filter(pa.array(in_last_slot)), settings
    )
    cancelled &= (due >= now) | is_certain
    states = choose_states(due, now, delivered=delivered, cancelled=cancelled)
    stored = longs(held, "store_timestamp_ms")[first]
    return pending_rows(
        Kind.TIMER, copies, stored=stored, due=due, delivered=delivered, states=states
    )


def names_topic(config: StoreConfig, settings: HoldSettings) -> bool:
    """Return whether a cancellation names the real topic too."""
    if config.version >= _HAS_TOPIC_IF_SET:
        return settings.delete_key_has_topic
    return config.version >= _HAS_TOPIC


def _is_cancelled(copies: pa.Table, cancels: pa.Table, settings: HoldSettings) -> NDArray[np.bool_]:
    """Return which messages a cancellation of the same slot names."""
    parts = [
        [*(longs(t, n) for n in NAME), longs(t, "timer_out") // settings.timer_precision_ms]
        for t in (copies, cancels)
    ]
    wanted, named = codes(*parts)
    is_named: NDArray[np.bool_] = pc.is_valid(copies[NAME[0]]).to_numpy()
    return np.isin(wanted, named) & is_named


def _in_last_slot(records: pa.Table, settings: HoldSettings) -> NDArray[np.bool_]:
    """Return which records the wheel holds in the slot of their due time, not one to be rolled."""
    remaining = longs(records, "timer_out") - longs(records, "store_timestamp_ms")
    mask: NDArray[np.bool_] = (remaining > 0) & (remaining < settings.timer_window_ms)
    return mask
