"""Where a read of one store begins and ends, by its options.

Offsets by queue are the messages' own; a scan of the log finds them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from store.commitlog.boundary_search import first_stored_after, first_stored_at
from store.commitlog.reader.log_batches import LogBatches
from store.errors import ConfigError, LostDataError
from streaming.sources.options import (
    EARLIEST,
    LATEST,
    OFFSET_KEY,
    Offsets,
    SourceOptions,
    StoreOffsets,
)
from streaming.sources.queues.offsets import NO_OFFSET, QueueOffsets, QueueSpans
from streaming.sources.queues.offsets_in_log import (
    Place,
    Queue,
    WantedOffsets,
    places_in_log,
)
from streaming.sources.stores import Store

_log = logging.getLogger(__name__)


class Start(NamedTuple):
    """The commit log offset at which a read begins, and the offsets by queue that it was given."""

    offset: int
    queues: QueueOffsets | None = None


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The span of a log that a batch reads, and the spans of its queues."""

    begin: int
    end: int
    queues: QueueSpans = field(default_factory=QueueSpans)


def span_to_read(options: SourceOptions, batches: LogBatches, store: Store) -> LogSpan:
    """Return the span that a batch reads. Raises ConfigError, DamageError, StoreIOError."""
    start = start_of_read(options, batches, store)
    end, ceilings = _end_of_read(options, batches, store)
    queues = QueueSpans(start.queues, ceilings)
    begin = start.offset
    if queues:
        begin = min(begin, end)  # each queue has its own end
    if begin > end:
        raise ConfigError(f"the read begins at offset {begin}, after its end at {end}")
    return LogSpan(begin, end, queues)


def start_of_read(options: SourceOptions, batches: LogBatches, store: Store) -> Start:
    """Return where a read begins; ``startingTimestamp`` overrides ``startingOffsets``.

    Raises ConfigError, LostDataError for expired messages of a queue, DamageError, StoreIOError.
    """
    log, start = batches.log, options.starting_offsets
    if options.starting_timestamp is not None:
        return Start(first_stored_at(log, options.starting_timestamp))
    if start == EARLIEST:
        return Start(max(log.min_offset(), 0))
    if start == LATEST:
        return Start(log.max_offset())
    offset = _of_broker("startingOffsets", start, options, store.broker)
    if isinstance(offset, int):
        return Start(offset)
    latest = batches.end()
    wanted = WantedOffsets("startingOffsets", offset, missing=0)
    _check_topics(options, wanted)
    places = places_in_log(batches.stretches(), wanted)
    queues = wanted.resolved(places)
    _check_expired(options, batches, places, queues)
    begins = [latest if place.begin is None else place.begin for place in places.values()]
    return Start(min(begins, default=latest), queues)


def _end_of_read(
    options: SourceOptions, batches: LogBatches, store: Store
) -> tuple[int, QueueOffsets | None]:
    """Return the exclusive end of a batch read; a time is inclusive, as in Kafka."""
    if options.ending_timestamp is not None:
        return first_stored_after(batches.log, options.ending_timestamp), None
    end = options.ending_offsets
    if end == EARLIEST:
        raise ConfigError("option 'endingOffsets' = 'earliest' leaves nothing to read")
    if end == LATEST:
        return batches.end(), None
    offset = _of_broker("endingOffsets", end, options, store.broker)
    if isinstance(offset, int):
        return offset, None
    wanted = WantedOffsets("endingOffsets", offset, missing=NO_OFFSET)
    _check_topics(options, wanted)
    places = places_in_log(batches.stretches(), wanted)
    ends = [place.end for place in places.values() if place.end is not None]
    return max(ends, default=max(batches.log.min_offset(), 0)), wanted.resolved(places)


def _of_broker(name: str, offsets: Offsets, options: SourceOptions, broker: str) -> StoreOffsets:
    """Return the offsets of one broker. Raises ConfigError if the option has none."""
    if isinstance(offsets, int | QueueOffsets) and options.is_single:
        return offsets
    if isinstance(offsets, Mapping) and broker in offsets:
        return offsets[broker]
    raise ConfigError(
        f"option {name!r} has no offset of broker {broker!r}; with several stores, give one for "
        f'each: {{"{broker}": {{"{OFFSET_KEY}": 0}}, …}}'
    )


def _check_topics(options: SourceOptions, wanted: WantedOffsets) -> None:
    """Raise ConfigError if a topic that the read subscribes to has no offsets, as in Kafka."""
    for topic in options.subscribe or ():
        if topic not in wanted.given.by_topic:
            raise ConfigError(
                f"option {wanted.option!r} has no offsets of topic {topic!r}, which 'subscribe' "
                f'names; {{"{topic}": {{}}}} reads all of it'
            )


def _check_expired(
    options: SourceOptions, batches: LogBatches, places: Mapping[Queue, Place], start: QueueOffsets
) -> None:
    """Raise LostDataError, or warn, if a queue begins after the offset at which the read does."""
    for topic, offsets in start.by_topic.items():
        for queue_id, offset in offsets.items():
            place = places.get((topic, queue_id))
            if place is None or offset >= place.min:
                continue
            reason = (
                f"option 'startingOffsets': queue {queue_id} of topic {topic!r} begins at offset "
                f"{place.min} now"
            )
            path = batches.log.path_of(max(batches.log.min_offset(), 0))
            hint = "failOnDataLoss=false begins there"
            error = LostDataError(path, offset, place.min, reason=reason, hint=hint)
            if options.fail_on_data_loss:
                raise error
            _log.warning("%s", error)
