"""Messages by key or tag through the index (format notes §8.6, §11.3), each confirmed in the log.

The index holds only hashes and may be ahead of its log. So, unlike a broker's answer, this one
has no hash collisions and no duplicates. It also has every match, whereas a broker examines the
newest 64 index entries and trusts their times. An index has no checksums, so it is checked as far
as its content allows: an entry that refers to a message without its key is damage.
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
from store.output.progress import ProgressView

KEY_TYPE = "K"
TAG_TYPE = "T"


@dataclass(frozen=True, slots=True)
class Query:
    """A query by key or unique key ("K") or by tag ("T"); store times in ms, both inclusive."""

    topic: str
    key: str
    begin_ms: int
    end_ms: int
    index_type: str = KEY_TYPE

    def matches(self, message: Message) -> bool:
        """Return whether a message matches the query."""
        if message.topic != self.topic:
            return False
        if not self.begin_ms <= message.store_timestamp <= self.end_ms:
            return False
        if self.index_type == TAG_TYPE:
            return message.tags == self.key
        return bool(self.key) and self.key in keys_of(message)

    def key_hash(self) -> int:
        """Return the hash under which the index stores the key."""
        return index_key_hash(self.topic, self.key, is_tag=self.index_type == TAG_TYPE)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The newest matches in log order; ``truncated`` if older ones were left out.

    ``index_last_update_timestamp`` (store time in ms) and ``index_last_update_phy_offset`` are
    those of the last message indexed at the time of the query. As with a broker, both are 0 if
    nothing was found.
    """

    messages: tuple[Message, ...]
    index_last_update_timestamp: int
    index_last_update_phy_offset: int
    truncated: bool


def query_message(
    index: IndexFiles, log: CommitLog, progress: ProgressView | None, query: Query, max_count: int
) -> QueryResult:
    """Look up a key in an index.

    Raises ConfigError if the index is off, has no tags or does not exist; DamageError for an
    invalid chain or record.
    """
    _check_type(query, log.config)
    files = open_index(index, log, progress)
    matches: dict[int, Message] = {}
    entry_counts: Counter[int] = Counter()  # by physical offset
    key_hash = query.key_hash()
    for file in files:
        for phy_offset in file.select_phy_offset(key_hash):
            entry_counts[phy_offset] += 1
            message = _read_indexed(phy_offset, log, must_exist=progress is not None)
            if message is None:
                continue
            is_match = query.matches(message)
            if progress is not None and not (is_match and entry_counts[phy_offset] == 1):
                _check_entry(file, message, key_hash, entry_counts[phy_offset])
            if is_match:
                matches[phy_offset] = message
                if len(matches) > max_count:
                    break
        if len(matches) > max_count:
            break
    newest = sorted(matches)[-max_count:] if max_count > 0 else []
    last_timestamp, last_offset = _last_update(files, log) if newest else (0, 0)
    return QueryResult(
        tuple(matches[offset] for offset in newest),
        last_timestamp,
        last_offset,
        truncated=len(matches) > max_count,
    )


def open_index(index: IndexFiles, log: CommitLog, progress: ProgressView | None) -> list[IndexFile]:
    """Return the valid index files, newest first.

    Raises ConfigError if the index is off or does not exist, which differs from "not found".
    """
    config, directory = log.config, index.directory
    if not config.message_index_enable:
        raise ConfigError(
            "the index is off (messageIndexEnable or indexFileWriteEnable=false): "
            f"{directory} is not built"
        )
    index.refresh()
    newest_first = index.files[::-1]
    if progress is None:
        if not newest_first and not log.is_empty():
            raise ConfigError(
                f"{directory} holds no index files: dispatch the log, or specify the OUTPUT that "
                "holds its index (--output)"
            )
        is_new = bool(newest_first) and newest_first[0].is_empty()  # the broker just created it
        return newest_first[is_new:]
    first, last = progress.index_first, progress.index_file
    files = [file for file in newest_first if first <= file.path.name <= last]
    if len(files) != progress.index_files:
        reason = f"{len(files)} index files from {first} to {last}, not {progress.index_files}"
        raise DamageError(directory, 0, reason, "restore them, or give a new OUTPUT")
    for file in files:
        is_last = file.path.name == last
        count = progress.index_count if is_last else config.max_index_num - 1
        file.bound = IndexBound(progress.reput_from_offset, count)
    return files


def _check_type(query: Query, config: StoreConfig) -> None:
    if query.index_type not in (KEY_TYPE, TAG_TYPE):
        raise ConfigError(
            f"index type {shown(query.index_type)} is neither 'K' (key) nor 'T' (tag)"
        )
    if query.index_type == TAG_TYPE and not config.indexes_tags:
        raise ConfigError(
            f"broker {config.version} does not index tags; 5.4.0 and later do (--broker-version)"
        )


def _read_indexed(phy_offset: int, log: CommitLog, *, must_exist: bool) -> Message | None:
    """Return the message that an index entry refers to, None if it has expired.

    For a broker's own index (not ``must_exist``), also return None for an entry ahead of the log:
    the index survives a truncation of the log.
    """
    if phy_offset < log.min_offset():
        return None
    return log.message(phy_offset) if must_exist else log.find_message(phy_offset)


def _check_entry(file: IndexFile, message: Message, key_hash: int, count: int) -> None:
    """Raise DamageError if a message has fewer than ``count`` keys with this hash."""
    keys = [(key, False) for key in keys_of(message)] + [(message.tags or "", True)]
    if message.sys_flag & SYS_TRANSACTION == SYS_ROLLBACK:
        keys = []  # a rollback message is not indexed
    hashes = [index_key_hash(message.topic, key, is_tag=is_tag) for key, is_tag in keys if key]
    if hashes.count(key_hash) < count:
        offset = message.commit_log_offset
        reason = (
            f"{count} entries with hash {key_hash} refer to offset {offset}, whose message has "
            "fewer such keys"
        )
        raise DamageError(file.path, 0, reason, "the index can be rebuilt from the log")


def keys_of(message: Message) -> list[str]:
    """Return a message's unique key and keys, as the broker indexes them."""
    return list(filter(None, (message.uniq_key, *(message.keys or "").split(" "))))


def _last_update(files: list[IndexFile], log: CommitLog) -> tuple[int, int]:
    """Return the store time and physical offset of the last message indexed."""
    for file in files:
        bound = file.bound
        if bound is None:
            header = file.header()
            return header.end_timestamp, header.end_phy_offset
        if bound.count:  # not from the header, which may be ahead and has no checksum
            phy_offset = file.entry(bound.count).phy_offset
            return log.message(phy_offset).store_timestamp, phy_offset
    return 0, 0
