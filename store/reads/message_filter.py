"""What a search looks for, decided in two steps: by columns for all records, then exactly for few.

The columns of a scan hold hashes of tags and keys. A record that passes them is a candidate; its
message decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.arrow.schema import rows_of_topics
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.record import Message
from store.errors import ConfigError, shown
from store.index.file import index_key_hash
from store.layout import SCHEDULE_TOPIC, SYS_ROLLBACK
from store.reads.get_message import TagFilter, parse_tags
from store.reads.query_message import keys_of
from store.regex.match import IsStopped, Regex


@dataclass(frozen=True)  # no slots: the tag filter is parsed once
class MessageFilter:
    """Selects messages; every condition must hold, and an absent one always does.

    Times are store times in ms, both inclusive. ``from_offset`` (inclusive) and ``to_offset``
    (exclusive) are physical offsets of records. ``keys`` are keys or unique keys, of which one
    suffices. ``tags`` is ``*`` or ``TagA || TagB``. ``body`` is a regular expression in RE2 syntax,
    found anywhere in the decompressed body; it matches bytes, its text as UTF-8. ``words`` are
    texts that the body contains, all of them, in upper or lower case.

    Raises ConfigError for a malformed tag, or a regular expression that is malformed or too large.
    """

    topics: frozenset[str] = frozenset()
    queue_id: int | None = None
    from_time: int | None = None
    to_time: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    keys: frozenset[str] = frozenset()
    tags: str = "*"
    properties: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text in (*self.properties, *self.properties.values(), self.body or "", *self.words):
            if not is_unicode(text):
                raise ConfigError(f"{shown(text)} is not text: it cannot be encoded in UTF-8")
        _ = self.tag_filter, self._patterns  # parsed now, so that an error is raised here

    @cached_property
    def tag_filter(self) -> TagFilter:
        """The parsed tags."""
        return parse_tags(self.tags)

    @cached_property
    def _patterns(self) -> tuple[Regex, ...]:
        """The regular expressions that a body must match."""
        patterns = () if self.body is None else (self.body,)
        return tuple(map(Regex.parse, (*patterns, *map(_word_pattern, self.words))))

    @property
    def states(self) -> int:
        """The states of the regular expressions, which bound the work for a byte of a body."""
        return sum(pattern.states for pattern in self._patterns)

    @property
    def columns(self) -> tuple[str, ...]:
        """The message columns that ``column_mask`` needs; none if it need not be called."""
        return ("properties",) * bool(self.properties) + ("body",) * bool(self._patterns)

    def candidates(self, requests: DispatchRequests) -> NDArray[np.int64]:
        """Return the rows that the columns of a scan do not exclude; the scan must index keys."""
        offsets, times = requests.commit_log_offset, requests.store_timestamp
        mask = np.ones(len(requests), np.bool_)
        if self.topics:
            mask &= rows_of_topics(requests, self.topics.__contains__)
        if self.queue_id is not None:
            mask &= (requests.queue_ids == self.queue_id)[requests.queue]
        for column, low, high in (
            (times, self.from_time, self.to_time),
            (offsets, self.from_offset, None if self.to_offset is None else self.to_offset - 1),
        ):
            if low is not None:
                mask &= column >= low
            if high is not None:
                mask &= column <= high
        if self.tag_filter.tags is not None:
            mask &= self._may_have_tag(requests)
        if self.keys:
            mask &= self._may_have_key(requests)
        return np.flatnonzero(mask)

    def column_mask(
        self, batch: pa.RecordBatch, is_stopped: IsStopped = lambda: False
    ) -> NDArray[np.bool_]:
        """Return for each row of a batch with ``columns`` whether properties and body match.

        Once ``is_stopped`` returns true, no further row matches. Raises SlowExpressionError.
        """
        mask = np.ones(batch.num_rows, np.bool_)
        for name, value in self.properties.items():
            found = pc.map_lookup(batch.column("properties"), pa.scalar(name), "first")
            mask &= _true(pc.equal(found, value))
        for pattern in self._patterns:
            rows, bodies = np.flatnonzero(mask), batch.column("body")
            if len(rows) < len(mask):
                bodies = bodies.take(pa.array(rows))
            mask[rows] = pattern.matches(bodies, is_stopped)
        return mask

    @property
    def columns_suffice(self) -> bool:
        """Whether ``candidates`` and ``column_mask`` decide, without ``confirms``."""
        return self.tag_filter.tags is None and not self.keys

    def confirms(self, message: Message) -> bool:
        """Return whether a candidate has the tags and keys themselves, not just their hashes."""
        if not self.tag_filter.matches(message):
            return False
        return not self.keys or not self.keys.isdisjoint(keys_of(message))

    def _may_have_tag(self, requests: DispatchRequests) -> NDArray[np.bool_]:
        # The tags code of a delayed message is its delivery time.
        is_delayed = rows_of_topics(requests, SCHEDULE_TOPIC.__eq__)
        return is_delayed | np.isin(
            requests.tags_code.astype(np.int32), list(self.tag_filter.hashes)
        )

    def _may_have_key(self, requests: DispatchRequests) -> NDArray[np.bool_]:
        """Return the rows with the hash of a key. A scan hashes no key of a rollback message."""
        topics = self.topics.intersection(requests.topics) or set(requests.topics)
        hashes = {index_key_hash(topic, key) for topic in topics for key in self.keys}
        mask: NDArray[np.bool_] = requests.transaction == SYS_ROLLBACK
        found = np.flatnonzero(np.isin(requests.key_hash, np.array(list(hashes), np.int32)))
        mask[np.searchsorted(requests.key_end, found, "right")] = True
        return mask


def _word_pattern(word: str) -> str:
    """Return a regular expression over bytes for a text in any case.

    RE2's own (?i) would fold bytes of UTF-8 sequences as if they were Latin-1 letters.
    """
    cases = (dict.fromkeys((c, c.lower(), c.upper())) for c in word)
    return "".join(f"(?:{'|'.join(map(_byte_pattern, found))})" for found in cases)


def _byte_pattern(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded; an argument that was not UTF-8 cannot."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _true(values: pa.Array) -> NDArray[np.bool_]:
    """Return whether each value is true, not false or null."""
    mask: NDArray[np.bool_] = values.fill_null(False).to_numpy(zero_copy_only=False)
    return mask
