"""Messages by key or tag through the index (format notes §8.6, §11.3), each one confirmed.

The index knows hashes only, and may be ahead of its log. So unlike a broker's answer this one has
no collision and no message twice; and it has every match, where a broker looks at the newest 64
index entries and trusts their times. Nothing protects an index from a changed byte, so what can be
told from inside is: where an entry leads to a message without its key, that is damage.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from store.commitlog.commit_log import CommitLog
from store.commitlog.record import Message
from store.config import StoreConfig
from store.errors import ConfigError, DamageError, shown
from store.index.file import IndexBound, IndexFile, IndexFiles, index_key_hash
from store.layout import SYS_ROLLBACK, SYS_TRANSACTION
from store.root.progress import ProgressView

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
        return bool(self.key) and self.key in _keys(message)

    def key_hash(self) -> int:
        """Return the hash that the index has for the key."""
        return index_key_hash(self.topic, self.key, is_tag=self.index_type == TAG_TYPE)


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
    index: IndexFiles, log: CommitLog, dispatched: ProgressView | None, query: Query, max_count: int
) -> QueryResult:
    """Look a key up in an index.

    Raises ConfigError where the index is off, has no tags, or is not there; DamageError for a
    chain or a record that is not as it must be.
    """
    _check_type(query, log.config)
    files = open_index(index, log, dispatched)
    found: dict[int, Message] = {}
    seen: Counter[int] = Counter()
    key_hash = query.key_hash()
    for file in files:
        for phy_offset in file.select_phy_offset(key_hash):
            seen[phy_offset] += 1
            message = _confirm(phy_offset, log, is_sure=dispatched is not None)
            if message is None:
                continue
            is_match = query.matches(message)
            if dispatched is not None and not (is_match and seen[phy_offset] == 1):
                _check_entry(file, message, key_hash, seen[phy_offset])
            if is_match:
                found[phy_offset] = message
                if len(found) > max_count:
                    break
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


def open_index(
    index: IndexFiles, log: CommitLog, dispatched: ProgressView | None
) -> list[IndexFile]:
    """Return the index files that count, newest first.

    Raises ConfigError where the index is off or not there, which is not "nothing found".
    """
    config, directory = log.config, index.directory
    if not config.message_index_enable:
        raise ConfigError(f"the index is off (messageIndexEnable=false): {directory} is not built")
    index.refresh()
    newest_first = index.files[::-1]
    if dispatched is None:
        if not newest_first and not log.is_empty():
            raise ConfigError(
                f"{directory} holds no index files: dispatch the log, or say where its index is "
                "(--output)"
            )
        is_new = bool(newest_first) and newest_first[0].is_empty()  # made a moment ago
        return newest_first[is_new:]
    first, last = dispatched.index_first, dispatched.index_file
    files = [file for file in newest_first if first <= file.path.name <= last]
    if len(files) != dispatched.index_files:
        reason = f"{len(files)} index files from {first} to {last}, not {dispatched.index_files}"
        raise DamageError(directory, 0, reason, "restore them, or give a new OUTPUT")
    for file in files:
        is_last = file.path.name == last
        count = dispatched.index_count if is_last else config.max_index_num - 1
        file.bound = IndexBound(dispatched.reput_from_offset, count)
    return files


def _check_type(query: Query, config: StoreConfig) -> None:
    if query.index_type not in (KEY_TYPE, TAG_TYPE):
        raise ConfigError(
            f"index type {shown(query.index_type)} is neither 'K' (key) nor 'T' (tag)"
        )
    if query.index_type == TAG_TYPE and not config.indexes_tags:
        raise ConfigError(
            f"broker {config.version} does not index tags, 5.4.0 and later do (--broker-version)"
        )


def _confirm(phy_offset: int, log: CommitLog, *, is_sure: bool) -> Message | None:
    """Return the message an index entry names, None if it has expired.

    On a broker's root (not ``is_sure``) also None for an entry that is ahead of its log: the index
    survives a truncation.
    """
    if phy_offset < log.min_offset():
        return None
    return log.message(phy_offset) if is_sure else log.find_message(phy_offset)


def _check_entry(file: IndexFile, message: Message, key_hash: int, count: int) -> None:
    """Raise DamageError if ``count`` entries with a hash are more than a message has such keys."""
    keys = [(key, False) for key in _keys(message)] + [(message.tags or "", True)]
    if message.sys_flag & SYS_TRANSACTION == SYS_ROLLBACK:
        keys = []  # it is not indexed
    hashes = [index_key_hash(message.topic, key, is_tag=is_tag) for key, is_tag in keys if key]
    if hashes.count(key_hash) < count:
        offset = message.commit_log_offset
        reason = f"{count} entries of hash {key_hash} lead to offset {offset}, which has fewer"
        raise DamageError(file.path, 0, reason, "the index can be rebuilt from the log")


def _keys(message: Message) -> list[str]:
    """Return a message's unique key and its keys, as they are indexed."""
    return list(filter(None, (message.uniq_key, *(message.keys or "").split(" "))))


def _last_update(files: list[IndexFile], log: CommitLog) -> tuple[int, int]:
    """Return store time and physical offset of the last message indexed."""
    for file in files:
        bound = file.bound
        if bound is None:
            header = file.header()
            return header.end_timestamp, header.end_phy_offset
        if bound.count:  # the header may be ahead, and nothing protects it
            phy_offset = file.entry(bound.count).phy_offset
            return log.message(phy_offset).store_timestamp, phy_offset
    return 0, 0
