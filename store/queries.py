"""Messages by key or tag through the index (format notes §8.6, §11.3), each one confirmed.

The index knows hashes only, and may be ahead of its log. So unlike a broker's answer this one has
no collision and no message twice; and it has every match, where a broker looks at the newest 64
index entries and trusts their times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from store.config import StoreConfig
from store.dispatched import Dispatched
from store.errors import ConfigError, DamageError
from store.index_file import IndexBound, IndexFile, index_key_hash, list_index_files
from store.log_reader import LogReader
from store.record import Message

KEY_TYPE = "K"
TAG_TYPE = "T"


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for: a key or unique key ("K") or a tag ("T"), store times in ms, inclusive."""

    topic: str
    key: str
    begin_ms: int
    end_ms: int
    index_type: str = KEY_TYPE

    def matches(self, message: Message) -> bool:
        """Tell whether a message is one that the query asks for."""
        if message.topic != self.topic:
            return False
        if not self.begin_ms <= message.store_timestamp <= self.end_ms:
            return False
        if self.index_type == TAG_TYPE:
            return message.tags == self.key
        keys = (message.keys or "").split(" ")
        return bool(self.key) and self.key in (message.uniq_key, *keys)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The newest matches in log order; ``truncated`` if older ones were left out.

    How far the index was when asked: store time in ms and physical offset of the last message
    indexed. As a broker's they are 0 if nothing was found.
    """

    messages: tuple[Message, ...]
    index_last_update_timestamp: int
    index_last_update_phy_offset: int
    truncated: bool


def query_message(
    directory: Path, log: LogReader, dispatched: Dispatched | None, query: Query, max_count: int
) -> QueryResult:
    """Look a key up in the index files of ``directory``.

    Raises ConfigError where the index is off, has no tags, or is not there; DamageError for a
    chain or a record that is not as it must be.
    """
    _check_type(query, log.config)
    files = open_index(directory, log, dispatched)
    found: dict[int, Message] = {}
    seen: set[int] = set()
    for phy_offset in _candidates(files, query):
        if phy_offset in seen:
            continue
        seen.add(phy_offset)
        message = _confirm(phy_offset, log, is_sure=dispatched is not None)
        if message is not None and query.matches(message):
            found[phy_offset] = message
            if len(found) > max_count:
                break
    newest = sorted(found)[-max_count:] if max_count > 0 else []
    last_timestamp, last_offset = _last_update(files, log) if newest else (0, 0)
    return QueryResult(
        tuple(found[offset] for offset in newest),
        last_timestamp,
        last_offset,
        truncated=len(found) > max_count,
    )


def open_index(directory: Path, log: LogReader, dispatched: Dispatched | None) -> list[IndexFile]:
    """Return the index files that count, newest first.

    Raises ConfigError where the index is off or not there, which is not "nothing found".
    """
    config = log.config
    if not config.message_index_enable:
        raise ConfigError(f"the index is off (messageIndexEnable=false): {directory} is not built")
    paths = list_index_files(directory)
    if dispatched is None:
        if not paths and not log.is_empty():
            raise ConfigError(f"{directory} holds no index files: no index has been built there")
        return [IndexFile(path, config) for path in reversed(paths)]
    last = dispatched.index_file
    if last and last not in (path.name for path in paths):
        raise DamageError(directory / last, 0, "the index file named by progress is missing")
    files = []
    for path in reversed(paths):
        if path.name <= last:
            count = dispatched.index_count if path.name == last else config.max_index_num - 1
            bound = IndexBound(dispatched.reput_from_offset, count)
            files.append(IndexFile(path, config, bound))
    return files


def _check_type(query: Query, config: StoreConfig) -> None:
    if query.index_type not in (KEY_TYPE, TAG_TYPE):
        raise ConfigError(f"index type {query.index_type!r} is neither 'K' (key) nor 'T' (tag)")
    if query.index_type == TAG_TYPE and not config.indexes_tags:
        raise ConfigError(
            f"broker {config.version} does not index tags, 5.4.0 and later do (--broker-version)"
        )


def _candidates(files: list[IndexFile], query: Query) -> Iterator[int]:
    """Yield the physical offsets the index has for a key, newest first."""
    key_hash = index_key_hash(query.topic, query.key, is_tag=query.index_type == TAG_TYPE)
    for file in files:
        yield from file.select_phy_offset(key_hash, begin_ms=query.begin_ms, end_ms=query.end_ms)


def _confirm(phy_offset: int, log: LogReader, *, is_sure: bool) -> Message | None:
    """Return the message an index entry names, None if it has expired.

    On a broker's root (not ``is_sure``) also None for an entry that is ahead of its log: the index
    survives a truncation.
    """
    if phy_offset < log.min_offset():
        return None
    return log.message(phy_offset) if is_sure else log.look(phy_offset)


def _last_update(files: list[IndexFile], log: LogReader) -> tuple[int, int]:
    """Return store time and physical offset of the last message indexed."""
    for file in files:
        header, bound = file.header(), file.bound
        if bound is None or header.end_phy_offset < bound.phy_offset:
            return header.end_timestamp, header.end_phy_offset
        if bound.count:  # the header is already ahead
            phy_offset = file.entry(bound.count).phy_offset
            return log.message(phy_offset).store_timestamp, phy_offset
    return 0, 0
