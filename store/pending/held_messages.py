"""The messages that a broker holds back, and the records that decide on them, as Arrow tables.

``read_held`` reads them from the log in two passes: first the records of the broker's own topics,
then the other records that were born in the same millisecond as a held message, as the message that
the broker delivers is: it keeps born time, unique key and body.

A record takes a fixed number of bytes, whatever its properties: texts are kept as their hashes
(``store.pending.text_hash``), the real topic as a number in a dictionary. The keys of a message are
read when it is shown.

A held table has the columns ``_RECORD_FIELDS``, those of ``_NUMBERS`` that its topic needs, null
where a property is missing or no integer, and ``real_topic``. ``message_…`` identifies the message:
its real topic, unique key and born time; for a message without a unique key its body's CRC takes
its place. In the table of timer messages, ``name_…`` is what a cancellation names, null if nothing
can name the message, and ``is_cancel`` marks cancellations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.arrow.batches import batch_schema
from store.arrow.schema import rows_of_topics
from store.commitlog.commit_log import ReportProgress
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Damage
from store.config import StoreConfig
from store.errors import StoreError
from store.io.spilled_totals import GroupTotals
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
    SYS_COMMIT,
    SYS_TRANSACTION,
    TIMER_TOPIC,
    TOPIC_BYTES_MAX,
)
from store.pending.deliveries import NONE
from store.pending.states import longs
from store.pending.text_hash import TextHash
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch
from store.regex.match import IsStopped

_RECORD_FIELDS = (
    "queue_id",
    "queue_offset",
    "commit_log_offset",
    "store_timestamp_ms",
    "born_timestamp_ms",
    "sys_flag",
    "prepared_transaction_offset",
)
_NUMBERS = {
    "real_queue_id": PROPERTY_REAL_QUEUE_ID,
    "timer_out": PROPERTY_TIMER_OUT,
    "check_times": PROPERTY_CHECK_TIMES,
    "check_immunity": PROPERTY_CHECK_IMMUNITY,
    "prepared_queue_offset": PROPERTY_PREPARED_QUEUE_OFFSET,
}
_NUMBERS_OF = {
    SCHEDULE_TOPIC: ("real_queue_id",),
    TIMER_TOPIC: ("real_queue_id", "timer_out"),
    HALF_TOPIC: ("real_queue_id", "check_times", "check_immunity", "prepared_queue_offset"),
    CHECK_MAX_TIME_TOPIC: (),
}
HELD_TOPICS = tuple(_NUMBERS_OF)
_IDENTITY = ("topic", "uniq_key", "body_crc", "born_timestamp_ms")
_HELD_COLUMNS = tuple(dict.fromkeys((*_RECORD_FIELDS, *_IDENTITY, "properties")))
_OP_COLUMNS = ("commit_log_offset", "size", "tags", "body")
_OP_BODY_MAX = 4 << 20  # a broker's maxMessageSize
_SENT_FIELDS = (
    "commit_log_offset",
    "store_timestamp_ms",
    "sys_flag",
    "prepared_transaction_offset",
)
_SENT_COLUMNS = (*_SENT_FIELDS, *_IDENTITY)
MESSAGE = ("message_1", "message_2")
NAME = ("name_1", "name_2")
_INTEGER = r"^-?[0-9]{1,18}$"
_OFFSETS = r"^[0-9]{1,18}(,[0-9]{1,18})*,?$"
_ROWS_AT_ONCE = 1 << 16
_SEPARATOR = "\x01"  # in no property, so in no part of an identity but the topic, which has none


@dataclass(frozen=True, slots=True)
class Held:
    """What the log holds on pending messages, in log order; the tables of one log.

    ``held`` are the records of each of the broker's own topics, ``sent`` those that may be their
    delivery, ``ended`` the queue offsets of half messages that OP messages end, each with the
    offsets of these OP messages, ``damages`` what could not be read.
    """

    held: Mapping[str, pa.Table]
    sent: pa.Table
    ended: pa.Table
    damages: tuple[Damage, ...]


def read_held(
    store_root: Path,
    config: StoreConfig,
    report: ReportProgress | None = None,
    stop: Event | None = None,
    *,
    names_topic: bool = False,
) -> Held:
    """Read the log of a store. Damage is passed and returned; other errors raise StoreError.

    So does setting ``stop``: a part of the log does not show what became of a message.
    ``names_topic`` is whether a cancellation names the real topic too.
    """
    reader = _Reader(names_topic)
    parts = [(MessageFilter(topics=frozenset((topic,))), _HELD_COLUMNS) for topic in HELD_TOPICS]
    parts.append((MessageFilter(topics=frozenset((OP_TOPIC,))), _OP_COLUMNS))
    wanted = MessageFilter(topics=frozenset((*HELD_TOPICS, OP_TOPIC)))
    search = LogSearch(
        store_root,
        config,
        wanted,
        max_body_bytes=_OP_BODY_MAX,
        stop=stop,
        skip_damage=True,
    )
    held = {topic: [reader.held(topic, _empty(_HELD_COLUMNS))] for topic in HELD_TOPICS}
    ended = GroupTotals(["queue_offset"], {"commit_log_offset": "max"})
    for at, batch in search.batches_of(parts, report=report):
        if at < len(HELD_TOPICS):
            topic = HELD_TOPICS[at]
            held[topic].append(reader.held(topic, batch))
        else:
            ended.add(_ended(batch))
    tables = {topic: pa.concat_tables(held.pop(topic)).combine_chunks() for topic in HELD_TOPICS}
    sent = _read_sent(search, config, store_root, tables, reader)
    if search.stop.is_set():
        raise StoreError("the reading of pending messages was interrupted")
    return Held(tables, sent, _ended_of(tables[HALF_TOPIC], ended), tuple(search.damages))


def _empty(columns: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=batch_schema(columns))


def _read_sent(
    first: LogSearch,
    config: StoreConfig,
    store_root: Path,
    held: Mapping[str, pa.Table],
    reader: _Reader,
) -> pa.Table:
    """Read the records that may be deliveries of held messages, or commits of half messages."""
    found = [reader.sent(_empty(_SENT_COLUMNS))]
    tables = [table for table in held.values() if table.num_rows]
    if tables:
        begin = min(pc.min(table["commit_log_offset"]).as_py() for table in tables)
        wanted = _Born(
            from_offset=begin,
            to_offset=first.end,
            times=np.unique(np.concatenate([t["born_timestamp_ms"].to_numpy() for t in tables])),
            own=frozenset(HELD_TOPICS) - _real_topics(tables),
        )
        hashes = np.unique(np.concatenate([t[MESSAGE[0]].to_numpy() for t in tables]))
        halves = np.unique(np.append(longs(held[HALF_TOPIC], "commit_log_offset"), NONE))
        search = LogSearch(store_root, config, wanted, stop=first.stop, skip_damage=True)
        for _, batch in search.batches_of([(wanted, _SENT_COLUMNS)]):
            sent = reader.sent(batch)
            is_commit = (sent["sys_flag"].to_numpy() & SYS_TRANSACTION) == SYS_COMMIT
            is_commit &= _is_in(sent["prepared_transaction_offset"].to_numpy(), halves)
            is_of_held = _is_in(sent[MESSAGE[0]].to_numpy(), hashes)
            found.append(sent.filter(pa.array(is_commit | is_of_held)))
    return pa.concat_tables(found)


def _real_topics(tables: Sequence[pa.Table]) -> frozenset[str]:
    """Return which of the broker's own topics are real topics of held messages."""
    own = pa.array(HELD_TOPICS)
    chunks = (chunk for table in tables for chunk in table["real_topic"].chunks)
    return frozenset(t for c in chunks for t in own.filter(pc.is_in(own, c.dictionary)).to_pylist())


@dataclass(frozen=True)
class _Born(MessageFilter):
    """Selects the records of other topics than ``own`` that were born at one of these times."""

    times: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    own: frozenset[str] = frozenset()

    @property
    def columns(self) -> tuple[str, ...]:
        return ("born_timestamp_ms",)

    def candidates(self, requests: DispatchRequests) -> NDArray[np.int64]:
        rows = super().candidates(requests)
        return rows[~rows_of_topics(requests, self.own.__contains__)[rows]]

    def column_mask(
        self, batch: pa.RecordBatch, is_stopped: IsStopped = lambda: False
    ) -> NDArray[np.bool_]:
        return _is_in(batch["born_timestamp_ms"].to_numpy(), self.times)


class _Reader:
    """Makes compact tables of the columns of records."""

    def __init__(self, names_topic: bool) -> None:
        self._names_topic = names_topic
        self._hash = TextHash()

    def held(self, topic: str, batch: pa.RecordBatch) -> pa.Table:
        """Return the records of one of the broker's own topics."""
        real = _property(batch, PROPERTY_REAL_TOPIC)
        # A record whose REAL_TOPIC is missing, or cannot be one, is shown in the topic it is in.
        is_topic = pc.less_equal(pc.binary_length(real), TOPIC_BYTES_MAX)
        real = pc.if_else(pc.fill_null(is_topic, False), real, batch["topic"])
        columns = {name: batch[name] for name in _RECORD_FIELDS}
        for name in _NUMBERS_OF[topic]:
            columns[name] = _integers(_property(batch, _NUMBERS[name]))
        columns |= zip(MESSAGE, self._hash.of(_identity(batch, real)), strict=True)
        if topic == TIMER_TOPIC:
            cancelled = _property(batch, PROPERTY_TIMER_DELETE)
            key = batch["uniq_key"]
            name = pc.binary_join_element_wise(real, key, "+") if self._names_topic else key
            columns |= zip(NAME, self._hash.of(pc.coalesce(cancelled, name)), strict=True)
            columns["is_cancel"] = pc.is_valid(cancelled)
        columns["real_topic"] = real.dictionary_encode()
        return pa.table(columns)

    def sent(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the records that may be deliveries."""
        columns = {name: batch[name] for name in _SENT_FIELDS}
        hashes = self._hash.of(_identity(batch, batch["topic"]))
        return pa.table(columns | dict(zip(MESSAGE, hashes, strict=True)))


def _is_in(values: NDArray[np.int64], ordered: NDArray[np.int64]) -> NDArray[np.bool_]:
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    mask: NDArray[np.bool_] = ordered[at] == values
    return mask


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


def _ended(batch: pa.RecordBatch) -> pa.Table:
    """Return the queue offsets that OP messages end: one per message in 4.x, several in 5.x.

    The broker ignores an OP message without the tag for removal, and what is no offset.
    """
    is_end = pc.and_kleene(
        pc.equal(batch["tags"], OP_REMOVE_TAG), pc.match_substring_regex(batch["body"], _OFFSETS)
    )
    ends = batch.filter(is_end)
    lists = pc.split_pattern(ends["body"].cast(pa.string()), ",")
    row, text = pc.list_parent_indices(lists), pc.list_flatten(lists)
    is_offset = pc.not_equal(text, "")
    return pa.table(
        {
            "queue_offset": text.filter(is_offset).cast(pa.int64()),
            "commit_log_offset": ends["commit_log_offset"].take(row.filter(is_offset)),
        }
    )


def _ended_of(half: pa.Table, ended: GroupTotals) -> pa.Table:
    """Return which offsets of half messages are ended; of several OP messages, the last counts."""
    names = ("queue_offset", "prepared_queue_offset")
    offsets = np.unique(np.concatenate([longs(half, name) for name in names]))
    ended.sort("queue_offset")
    found: list[dict[str, int]] = []
    if len(offsets):
        rows = ended.rows()
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            ends = np.array([row["queue_offset"] for row in some], np.int64)
            found += compress(some, _is_in(ends, offsets).tolist())
    fields = [("queue_offset", pa.int64()), ("commit_log_offset", pa.int64())]
    return pa.Table.from_pylist(found, schema=pa.schema(fields))
