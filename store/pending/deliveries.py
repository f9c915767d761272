"""Which record delivered a held message; pure functions over columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]
NONE = -1  # no record, no time


def codes(*parts: Sequence[Longs]) -> list[Longs]:
    """Return a number for each row, the same for equal rows of all parts; a part is its columns."""
    columns = [np.concatenate(same) for same in zip(*parts, strict=True)]
    order = np.lexsort(columns)
    is_new = np.zeros(len(order), np.bool_)
    for column in columns:
        ordered = column[order]
        is_new[1:] |= ordered[1:] != ordered[:-1]
    found = np.empty(len(order), np.int64)
    found[order] = np.cumsum(is_new)
    return np.split(found, np.cumsum([len(part[0]) for part in parts])[:-1])


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Candidate records, by message (a code), in log order."""

    message: Longs
    offset: Longs
    timestamp: Longs

    def first_after(self, message: Longs, offset: Longs, due: Longs) -> Longs:
        """Return the offset of the record that delivered each held message, or NONE.

        It is the first record of the message stored after the held one. Where a message is held
        several times, as by each retry of a consumer, its delivery is also stored when it was
        due or later: a broker that was killed may deliver a message again, before the next is due.
        """
        order = np.lexsort((self.offset, self.message))
        messages, offsets, times = self.message[order], self.offset[order], self.timestamp[order]
        at = _search_after(messages, offsets, message, offset)
        repeats = np.bincount(message, minlength=1)[message] > 1 if len(message) else message > 0
        end = len(messages)

        def is_early(at: Longs) -> NDArray[np.bool_]:
            inside = np.minimum(at, end - 1)
            mask = (at < end) & (messages[inside] == message) & repeats & (times[inside] < due)
            return np.asarray(mask, np.bool_)

        if not end:
            return np.full(len(message), NONE, np.int64)
        while True:
            early = is_early(at)
            if not early.any():
                break
            at = at + early
        inside = np.minimum(at, end - 1)
        is_found = (at < end) & (messages[inside] == message)
        return np.where(is_found, offsets[inside], NONE)


def _search_after(messages: Longs, offsets: Longs, message: Longs, offset: Longs) -> Longs:
    """Return where in records ordered by message and offset the first after an offset is."""
    count = len(messages)
    all_messages = np.concatenate([messages, message])
    all_offsets = np.concatenate([offsets, offset])
    is_query = np.arange(len(all_messages)) >= count
    order = np.lexsort((is_query, all_offsets, all_messages))
    before = np.cumsum(order < count)  # records up to each place
    at = np.empty(len(message), np.int64)
    queries = order >= count
    at[order[queries] - count] = before[queries]
    return at


def newest_of(message: Longs, offset: Longs) -> tuple[Longs, Longs, Longs]:
    """Return the rows of the first and of the newest copy of each message, and each row's place.

    The messages are in the order of their first copies.
    """
    order = np.lexsort((offset, message))
    ordered = message[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(order) else order
    ends = np.r_[starts[1:], len(order)] - 1 if len(order) else order
    first, newest = order[starts], order[ends]
    by_offset = np.argsort(offset[first], kind="stable")
    place_of_group = np.empty(len(starts), np.int64)
    place_of_group[by_offset] = np.arange(len(starts))
    places = np.empty(len(order), np.int64)
    group = np.repeat(np.arange(len(starts)), ends - starts + 1) if len(order) else order
    places[order] = place_of_group[group]
    return first[by_offset], newest[by_offset], places
