"""The messages that a broker holds back, and the records that decide on them, as Arrow tables.

``read_held`` reads them from the log in two passes: first the records of the broker's own topics,
then the records of the real topics that were born in the same millisecond as a held message, as the
message that the broker delivers is: it keeps born time, unique key and body.

A held table has the columns ``HELD_FIELDS``: those of the record, and these from its properties,
null where a property is missing or no integer: ``real_topic``, ``real_queue_id``, ``timer_out``,
``timer_delete``, ``check_times``, ``check_immunity`` and ``prepared_queue_offset``. ``message``
identifies the message: its real topic, unique key and born time; for a message without a unique key
its body's CRC takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.commitlog.scanner import Damage
from store.config import StoreConfig
from store.errors import StoreError
from store.layout import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_REMOVE_TAG,
    OP_TOPIC,
    PROPERTY_CHECK_IMMUNITY,
    PROPERTY_CHECK_TIMES,
    PROPERTY_PREPARED_QUEUE_OFFSET,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELETE,
    PROPERTY_TIMER_OUT,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from store.reads.message_filter import MessageFilter
from store.reads.search import LogSearch, Report

_RECORD_FIELDS = {
    "topic": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "commit_log_offset": pa.int64(),
    "keys": pa.string(),
    "uniq_key": pa.string(),
    "store_timestamp_ms": pa.int64(),
    "born_timestamp_ms": pa.int64(),
    "sys_flag": pa.int32(),
    "prepared_transaction_offset": pa.int64(),
    "body_crc": pa.int32(),
}
_TEXTS = {"real_topic": PROPERTY_REAL_TOPIC, "timer_delete": PROPERTY_TIMER_DELETE}
_NUMBERS = {
    "real_queue_id": PROPERTY_REAL_QUEUE_ID,
    "timer_out": PROPERTY_TIMER_OUT,
    "check_times": PROPERTY_CHECK_TIMES,
    "check_immunity": PROPERTY_CHECK_IMMUNITY,
    "prepared_queue_offset": PROPERTY_PREPARED_QUEUE_OFFSET,
}
HELD_FIELDS = pa.schema(
    [
        *_RECORD_FIELDS.items(),
        *((name, pa.string()) for name in _TEXTS),
        *((name, pa.int64()) for name in _NUMBERS),
        ("message", pa.string()),
    ]
)
_HELD_COLUMNS = (*_RECORD_FIELDS, "properties")
_OP_COLUMNS = ("commit_log_offset", "queue_id", "tags", "body")
_SENT_COLUMNS = tuple(name for name in _RECORD_FIELDS if name != "keys")
SENT_FIELDS = pa.schema(
    [*((n, _RECORD_FIELDS[n]) for n in _SENT_COLUMNS), ("message", pa.string())]
)
ENDED_FIELDS = pa.schema(
    [("commit_log_offset", pa.int64()), ("queue_id", pa.int32()), ("queue_offset", pa.int64())]
)
_INTEGER = r"^-?[0-9]{1,18}$"
_OFFSETS = r"^[0-9]{1,18}(,[0-9]{1,18})*,?$"
_SEPARATOR = "\x01"  # in no property, so in no part of an identity but the topic, which has none


@dataclass(frozen=True, slots=True)
class Held:
    """What the log holds on pending messages, in log order; the tables of one log.

    ``held`` are the records of the broker's own topics, ``sent`` those that may be their delivery,
    ``ended`` the queue offsets of half messages that OP messages end, ``damages`` what could not be
    read. ``from_offset`` is where the log begins.
    """

    held: pa.Table
    sent: pa.Table
    ended: pa.Table
    damages: tuple[Damage, ...]

    def of_topic(self, topic: str) -> pa.Table:
        """Return the held records of one of the broker's topics."""
        return self.held.filter(pc.equal(self.held["topic"], topic))


def read_held(
    store_root: Path,
    config: StoreConfig,
    report: Report | None = None,
    stop: Event | None = None,
) -> Held:
    """Read the log of a store. Damage is passed and returned; other errors raise StoreError.

    So does setting ``stop``: a part of the log does not tell what became of a message.
    """
    own = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, CHECK_MAX_TIME_TOPIC))
    parts = (
        (MessageFilter(topics=own), _HELD_COLUMNS),
        (MessageFilter(topics=frozenset((OP_TOPIC,))), _OP_COLUMNS),
    )
    wanted = MessageFilter(topics=own | {OP_TOPIC})
    search = LogSearch(store_root, config, wanted, stop=stop, skip_damage=True)
    held: list[pa.RecordBatch] = []
    ended: list[pa.RecordBatch] = []
    for at, batch in search.batches_of(parts, report=report):
        if at == 0:
            held.append(_held_batch(batch))
        else:
            ended += _ended_batches(batch)
    table = pa.Table.from_batches(held, HELD_FIELDS)
    sent = _read_sent(search, config, store_root, table) if table.num_rows else []
    if search.stop.is_set():
        raise StoreError("the reading of pending messages was interrupted")
    return Held(
        table,
        pa.Table.from_batches(sent, SENT_FIELDS),
        pa.Table.from_batches(ended, ENDED_FIELDS),
        tuple(search.damages or ()),
    )


def _read_sent(
    first: LogSearch, config: StoreConfig, store_root: Path, held: pa.Table
) -> list[pa.RecordBatch]:
    """Read the records of the real topics that were born when a held message was."""
    begin = pc.min(held["commit_log_offset"]).as_py()
    wanted = MessageFilter(
        topics=frozenset(pc.unique(held["real_topic"]).to_pylist()),
        from_offset=begin,
        to_offset=first.end,
    )
    born = np.unique(held["born_timestamp_ms"].to_numpy())
    search = LogSearch(store_root, config, wanted, stop=first.stop, skip_damage=True)
    found = [
        batch.filter(pa.array(_is_in(batch["born_timestamp_ms"].to_numpy(), born)))
        for _, batch in search.batches_of([(wanted, _SENT_COLUMNS)])
    ]
    return [
        pa.RecordBatch.from_arrays(
            [*batch.columns, _identity(batch, batch["topic"])], schema=SENT_FIELDS
        )
        for batch in found
        if batch.num_rows
    ]


def _is_in(values: NDArray[np.int64], ordered: NDArray[np.int64]) -> NDArray[np.bool_]:
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    mask: NDArray[np.bool_] = ordered[at] == values
    return mask


def _held_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace the properties of held records by the columns made of them."""
    texts = {name: _property(batch, prop) for name, prop in _TEXTS.items()}
    # A record without REAL_TOPIC is shown in the topic it is in.
    texts["real_topic"] = pc.coalesce(texts["real_topic"], batch["topic"])
    numbers = [_integers(_property(batch, prop)) for prop in _NUMBERS.values()]
    message = _identity(batch, texts["real_topic"])
    columns = [batch[name] for name in _RECORD_FIELDS]
    return pa.RecordBatch.from_arrays(
        [*columns, *texts.values(), *numbers, message], schema=HELD_FIELDS
    )


def _property(batch: pa.RecordBatch, name: str) -> pa.Array:
    return pc.map_lookup(batch["properties"], pa.scalar(name), "first")


def _integers(texts: pa.Array) -> pa.Array:
    is_integer = pc.match_substring_regex(texts, _INTEGER)
    return pc.if_else(is_integer, texts, pa.scalar(None, pa.string())).cast(pa.int64())


def _identity(batch: pa.RecordBatch, topic: pa.Array) -> pa.Array:
    """Return what identifies each message wherever the broker stores it."""
    crc = pc.binary_join_element_wise("", batch["body_crc"].cast(pa.string()), _SEPARATOR)
    born = batch["born_timestamp_ms"].cast(pa.string())
    return pc.binary_join_element_wise(topic, pc.coalesce(batch["uniq_key"], crc), born, _SEPARATOR)


def _ended_batches(batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
    """Return the queue offsets that OP messages end: one per message in 4.x, several in 5.x.

    The broker ignores an OP message without the tag for removal, and what is no offset.
    """
    is_end = pc.and_kleene(
        pc.equal(batch["tags"], OP_REMOVE_TAG), pc.match_substring_regex(batch["body"], _OFFSETS)
    )
    ends = batch.filter(is_end)
    if not ends.num_rows:
        return ()
    lists = pc.split_pattern(ends["body"].cast(pa.string()), ",")
    row, text = pc.list_parent_indices(lists), pc.list_flatten(lists)
    is_offset = pc.not_equal(text, "")
    row = row.filter(is_offset)
    columns = [ends["commit_log_offset"].take(row), ends["queue_id"].take(row)]
    offsets = text.filter(is_offset).cast(pa.int64())
    return (pa.RecordBatch.from_arrays([*columns, offsets], schema=ENDED_FIELDS),)
