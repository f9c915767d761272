"""The broker's own JSON files below ``config/``: topics, consumer offsets, delay offsets.

A broker rewrites each file whole and keeps the previous version as ``.bak``. Like a broker, a read
falls back to the ``.bak`` if the file is missing or torn (empty or truncated), and reports that its
content is older.

The text is written by fastjson: JSON, except that integer map keys are not quoted, as in
``{"MyTopic@CG":{0:50,1:48}}``. One linear pass quotes such keys, then Python's own JSON parser
reads the text: JSON5 has no such keys either, and lenient parsers in Python are slow.

==========================  ====================================================================
file                        what is read
==========================  ====================================================================
topics.json                 topicConfigTable: topic -> readQueueNums, writeQueueNums, perm,
                            attributes
consumerOffset.json         offsetTable: ``topic@group`` -> queue id -> committed position
lmqConsumerOffset.json      replaces it with enableLmq; also lmqOffsetTable: ``topic@group`` ->
                            offset in queue 0
delayOffset.json            offsetTable: delay level -> position in the schedule topic's queue
                            (level - 1) up to which messages were delivered
timermetrics                timingCount: topic -> count of its messages in the timer wheel
timercheck                  not JSON: ``TIMER_CHECKPOINT`` of store.layout, then zeros
==========================  ====================================================================

A broker with ``storeType=defaultRocksDB`` keeps topics and committed offsets in RocksDB instead, in
the directories ``topics`` and ``consumerOffsets``. They are not read, and the problem says so.
"""

from __future__ import annotations

import json
import os
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from store import java
from store.errors import StoreIOError, parse_fault, shown
from store.io.file_system import read_small_file
from store.layout import CONFIG_DIR, TIMER_CHECKPOINT, struct_of
from store.rocksdb import is_rocksdb

BACKUP_SUFFIX = ".bak"
PERM_READ, PERM_WRITE, PERM_INHERIT = 4, 2, 1  # PermName
_INT64_LIMIT = 1 << 63
_MISSING = "missing"

_TOPICS = "topics.json"
_CONSUMER_OFFSETS = "consumerOffset.json"
_LMQ_CONSUMER_OFFSETS = "lmqConsumerOffset.json"
_DELAY_OFFSETS = "delayOffset.json"
_TIMER_METRICS = "timermetrics"
_TIMER_CHECKPOINT = "timercheck"
_TIMER_FIELDS = struct_of(TIMER_CHECKPOINT)
_TOPIC_GROUP_SEPARATOR = "@"
# A string, which is kept unchanged, or an integer key. No part backtracks. An unterminated string
# matches too: otherwise every quote in it would start another search for a closing quote.
_STRING_OR_INTEGER_KEY = re.compile(
    r'("(?:[^"\\]++|\\.)*+"?)|([{,]\s*+)(-?+\d++)(?=\s*+:)', re.DOTALL
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic as configured on a broker; ``perm`` holds the permission bits; None: not set."""

    read_queue_nums: int | None
    write_queue_nums: int | None
    perm: int | None
    attributes: Mapping[str, str]

    @property
    def perm_text(self) -> str:
        """The permissions as a broker prints them: R, W and X (inherited), or dashes."""
        if self.perm is None:
            return ""
        # Java parity: PermName.perm2String.
        bits = (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
        return "".join(c if self.perm & bit else "-" for c, bit in bits)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The position from which a consumer group resumes in one queue."""

    group: str
    topic: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """The progress of the timer wheel, as last flushed by the broker (once per second).

    Messages of the timer topic below ``queue_offset`` are in the wheel; those due before
    ``read_timestamp`` (epoch ms) were delivered.
    """

    read_timestamp: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class ConfigFile(Generic[T]):
    """The result of reading one file; ``content`` is None if its backup is unreadable too.

    ``read_from`` is the file the content comes from; ``problem`` is the warning to show, or "".
    ``is_missing``: there is neither the file nor its backup, and no database in its place.
    """

    path: Path
    content: T | None
    read_from: Path | None
    problem: str
    is_missing: bool = False

    @property
    def is_unreadable(self) -> bool:
        """Whether there is content that cannot be read."""
        return self.content is None and not self.is_missing


def read_topic_configs(store_root: Path) -> ConfigFile[dict[str, TopicConfig]]:
    """Read the topics of a broker. Raises StoreIOError."""
    directory = store_root / CONFIG_DIR
    return _without_rocksdb(_read(directory / _TOPICS, _decode_topics), directory / "topics")


def topic_configs_paths(store_root: Path) -> tuple[str, str]:
    """Return the paths of the file of topics and of its backup, for ``files_state``."""
    path = str(store_root / CONFIG_DIR / _TOPICS)
    return path, path + BACKUP_SUFFIX


def files_state(paths: Iterable[str]) -> tuple[tuple[int, int, int] | None, ...]:
    """Return a value that differs after a broker has written one of these files."""
    return tuple(map(_file_state, paths))


def read_consumer_offsets(
    store_root: Path, *, enable_lmq: bool = False
) -> ConfigFile[list[CommittedOffset]]:
    """Read the committed offsets by group, topic and queue id. Raises StoreIOError."""
    directory = store_root / CONFIG_DIR
    name = _LMQ_CONSUMER_OFFSETS if enable_lmq else _CONSUMER_OFFSETS
    file = _read(directory / name, _decode_consumer_offsets)
    return _without_rocksdb(file, directory / "consumerOffsets")


def read_delay_offsets(store_root: Path) -> ConfigFile[dict[int, int]]:
    """Read the delivered position of each delay level. Raises StoreIOError."""
    return _read(store_root / CONFIG_DIR / _DELAY_OFFSETS, _decode_delay_offsets)


def read_timing_counts(store_root: Path) -> ConfigFile[dict[str, int]]:
    """Read how many messages of each topic are in the timer wheel. Raises StoreIOError."""
    return _read(store_root / CONFIG_DIR / _TIMER_METRICS, _decode_timing_counts)


def read_timer_checkpoint(store_root: Path) -> TimerCheckpoint | None:
    """Read the timer wheel's checkpoint, None if the broker has none. Raises StoreIOError.

    None also for a file that is too short or blank: a broker that is starting writes it so.
    """
    path = store_root / CONFIG_DIR / _TIMER_CHECKPOINT
    try:
        data = read_small_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise StoreIOError("read", path, e) from e
    if len(data) < TIMER_CHECKPOINT.itemsize or not any(data):
        return None
    read_timestamp, _, queue_offset, _ = _TIMER_FIELDS.unpack_from(data)
    return TimerCheckpoint(read_timestamp, queue_offset)


def encode_topics(queue_counts: Iterable[tuple[str, int]]) -> Iterator[bytes]:
    """Yield the parts of a ``topics.json``: these topics, readable and writable, with their queues.

    There is at least one topic, and each is given once.
    """
    # Java parity: TopicConfigManager.decode fails without a dataVersion.
    version = {"counter": 0, "stateVersion": 0, "timestamp": 0}
    head = json.dumps({"dataVersion": version}, indent=1).removesuffix("\n}")
    separator = f'{head},\n "topicConfigTable": {{'
    for topic, count in queue_counts:
        config = {
            "attributes": {},
            "order": False,
            "perm": PERM_READ | PERM_WRITE,
            "readQueueNums": count,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": count,
        }
        entry = json.dumps({topic: config}, ensure_ascii=False, indent=1)
        lines = entry.removeprefix("{").removesuffix("\n}").replace("\n", "\n ")
        yield f"{separator}{lines}".encode()
        separator = ","
    yield b"\n }\n}\n"


def parse_fastjson(text: str) -> Any:
    """Parse JSON whose integer keys may be unquoted. Raises ValueError."""
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(_STRING_OR_INTEGER_KEY.sub(_quote_key, text))


def _quote_key(match: re.Match[str]) -> str:
    return match[1] if match[1] is not None else f'{match[2]}"{match[3]}"'


def _read(path: Path, decode: Callable[[Any], T]) -> ConfigFile[T]:
    """Read a file, or its backup. Java parity: ``ConfigManager.load``."""
    content, reason = _read_one(path, decode)
    if content is not None:
        return ConfigFile(path, content, path, "")
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    content, backup_reason = _read_one(backup, decode)
    if content is not None:
        problem = f"{path} is {reason}; read from {backup.name} instead, which is older"
        return ConfigFile(path, content, backup, problem)
    problem = f"{path} is {reason}, {backup.name} is {backup_reason}"
    return ConfigFile(path, None, None, problem, is_missing={reason, backup_reason} == {_MISSING})


def _file_state(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)  # at each read by queue offset; a Path takes twice the time
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _without_rocksdb(file: ConfigFile[T], directory: Path) -> ConfigFile[T]:
    """Return a file with the problem that the broker keeps its content in RocksDB, if it does."""
    if not is_rocksdb(directory):
        return file
    problem = f"{directory} is a RocksDB, which is not read"
    if file.read_from is not None:
        problem += f"; {file.read_from.name} may be older"
    return replace(file, problem=problem, is_missing=False)


def _read_one(path: Path, decode: Callable[[Any], T]) -> tuple[T | None, str]:
    """Return the decoded content of a file, or None and the reason there is none."""
    try:
        data = read_small_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None, _MISSING
    except OSError as e:
        raise StoreIOError("read", path, e) from e
    if not data.strip(b"\0 \t\r\n"):
        return None, f"torn (its {len(data)} bytes are blank)" if data else "torn (empty)"
    if data.startswith(BOM_UTF8):
        return None, "torn (it begins with a byte order mark)"
    try:
        values = parse_fastjson(data.decode("utf-8"))
    except (ValueError, RecursionError) as e:
        return None, f"torn ({parse_fault(e)})"
    try:
        return decode(values), ""
    except (ValueError, RecursionError) as e:
        reason = "nested too deeply" if isinstance(e, RecursionError) else e
        return None, f"not as a broker writes it ({reason})"


def _decode_topics(values: Any) -> dict[str, TopicConfig]:
    topics = {}
    for name, raw in _member(values, "topicConfigTable").items():
        topic = _object(raw, name)
        numbers = (topic.get(key) for key in ("readQueueNums", "writeQueueNums", "perm"))
        read, write, perm = (None if n is None else _integer(n, name) for n in numbers)
        attributes = topic.get("attributes")
        items = _object({} if attributes is None else attributes, name).items()
        topics[name] = TopicConfig(read, write, perm, {key: str(value) for key, value in items})
    return topics


def _decode_consumer_offsets(values: Any) -> list[CommittedOffset]:
    found = list(_committed(_member(values, "offsetTable")))
    if values.get("lmqOffsetTable") is not None:
        table = _member(values, "lmqOffsetTable")
        found += _committed({name: {"0": offset} for name, offset in table.items()})
    return sorted(found, key=lambda c: (c.group, c.topic, c.queue_id))


def _committed(table: Mapping[str, Any]) -> Iterator[CommittedOffset]:
    for name, offsets in table.items():
        topic, _, group = name.partition(_TOPIC_GROUP_SEPARATOR)
        for queue_id, offset in _object(offsets, name).items():
            yield CommittedOffset(group, topic, _key(queue_id, name), _integer(offset, name))


def _decode_delay_offsets(values: Any) -> dict[int, int]:
    table = _member(values, "offsetTable")
    return {
        _key(level, "offsetTable"): _integer(offset, "offsetTable")
        for level, offset in table.items()
    }


def _decode_timing_counts(values: Any) -> dict[str, int]:
    table = _member(values, "timingCount")
    return {name: _integer(_object(raw, name).get("count"), name) for name, raw in table.items()}


def _member(value: Any, name: str) -> dict[str, Any]:
    return _object(_object(value, "it").get(name), name)


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not an object")
    return value


def _key(text: str, name: str) -> int:
    key = java.parse_int(text)
    if key is None:
        raise ValueError(f"{name} has the key {shown(text)}, not a 32-bit integer")
    return key


def _integer(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} holds {shown(str(value))}, not an integer")
    if not -_INT64_LIMIT <= value < _INT64_LIMIT:
        raise ValueError(f"{name} holds an integer of more than 64 bits")
    return value
