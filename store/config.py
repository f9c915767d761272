"""The broker settings that determine its files: sizes, flags, delay levels and version rules.

Read once from a ``broker.conf`` and frozen. Names are RocketMQ's, in snake_case.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from store import java
from store.answer_limits import AnswerLimits, answer_limits
from store.broker_properties import (
    BrokerProperties,
    read_properties,
    refuse_unsupported_settings,
)
from store.errors import ConfigError, shown
from store.io.checked_json import Check
from store.layout import (
    BLANK_SIZE,
    COMMIT_LOG_DIR,
    CQ_UNIT_SIZE,
    EXT_END_BLANK_SIZE,
    EXT_UNIT_SIZE,
    MAPPED_FILE_SIZE_MAX,
    RECORD_MIN_SIZE,
    index_file_size,
)
from store.rocksdb import rocksdb_queues

BROKER_CONF = "broker.conf"
DEFAULT_VERSION = "5.3.3"
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_LAST_RELEASE = {
    (4, 0): 0, (4, 1): 0, (4, 2): 0, (4, 3): 2, (4, 4): 0, (4, 5): 2, (4, 6): 1, (4, 7): 1,
    (4, 8): 0, (4, 9): 8, (5, 0): 0, (5, 1): 4, (5, 2): 0, (5, 3): 4, (5, 4): 0, (5, 5): 0,
}  # fmt: skip
_SIZE_MAX = MAPPED_FILE_SIZE_MAX + CQ_UNIT_SIZE  # a queue file's size is rounded up to whole units
_DELAY_MS_MAX = 2**63 - 1
_NOT_OF_SHAPE = (
    "version", "enable_controller_mode", "store_path_root_dir", "store_path_commit_log",
    "rocksdb_queues", "answers",
)  # fmt: skip
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class BrokerVersion(NamedTuple):
    """A RocketMQ release; rules that changed between releases compare against it."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> BrokerVersion:
        """Parse ``x.y.z``, or ``x.y`` for the last release of that line. Raises ConfigError."""
        match = _VERSION.fullmatch(text)
        line = (int(match[1]), int(match[2])) if match else (0, 0)
        if match is None or line not in _LAST_RELEASE:
            known = ", ".join(f"{a}.{b}" for a, b in _LAST_RELEASE)
            raise ConfigError(f"broker version {shown(text)} is not known; known lines are {known}")
        patch = _LAST_RELEASE[line] if match[3] is None else int(match[3])
        return cls(line[0], line[1], patch)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Settings of one store. Sizes are in bytes, counts as the broker counts them."""

    version: BrokerVersion = field(default_factory=lambda: BrokerVersion.parse(DEFAULT_VERSION))
    mapped_file_size_commit_log: int = 1024 * 1024 * 1024
    mapped_file_size_consume_queue: int = 300_000 * CQ_UNIT_SIZE
    mapped_file_size_consume_queue_ext: int = 48 * 1024 * 1024
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    enable_consume_queue_ext: bool = False
    enable_multi_dispatch: bool = False
    enable_lmq: bool = False
    enabled_append_prop_crc: bool = False
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    enable_controller_mode: bool = False
    store_path_root_dir: str = ""
    store_path_commit_log: str = ""
    rocksdb_queues: str = ""  # why the broker's own queues are not all in files, "" if they are
    answers: AnswerLimits = field(default_factory=AnswerLimits)

    # Rules by version (format notes §14 and the notes "since"). ---------------------------------

    @property
    def accepts_v2(self) -> bool:
        """Whether records with a two-byte topic length are accepted."""
        return self.version >= (5, 1, 0)

    @property
    def splits_properties(self) -> bool:
        """Whether properties are parsed by ``String.split`` (4.9.0 and before)."""
        return self.version < (4, 9, 1)

    @property
    def checks_inner_batch(self) -> bool:
        """Whether INNER_NUM and INNER_BASE must parse."""
        return self.version >= (5, 0, 0)

    @property
    def indexes_tags(self) -> bool:
        """Whether the index also holds ``topic#T#tags``."""
        return self.version >= (5, 4, 0)

    @property
    def counts_every_entry_as_slot(self) -> bool:
        """Whether ``hash_slot_count`` counts entries, not distinct slots (4.7.0 and before)."""
        return self.version < (4, 7, 1)

    @property
    def writes_count_of_empty_index(self) -> bool:
        """Whether an empty index file has count 1 (else 0) after a clean shutdown."""
        return self.version >= (5, 0, 0)

    @property
    def dispatches_multi(self) -> bool:
        """Whether a message is also dispatched to the queues named by INNER_MULTI_DISPATCH."""
        return self.enable_multi_dispatch and self.version >= (4, 9, 3)

    @property
    def multi_dispatch_excludes(self) -> tuple[str, ...]:
        """Topics (a trailing ``*`` marks a prefix) whose messages are never multi-dispatched."""
        if self.version < (5, 1, 1):
            return ()
        if self.version < (5, 1, 2):
            return ("%RETRY%*",)
        if self.version < (5, 2, 0):
            return ("%RETRY%*", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX")
        return ("%RETRY%*", "rmq_sys_*", "SCHEDULE_TOPIC_XXXX")

    @property
    def multi_dispatch_skips_slash(self) -> bool:
        """Whether multi-dispatch skips queue names with ``/``."""
        return self.version >= (5, 1, 2)

    @property
    def writes_pid_in_abort(self) -> bool:
        """Whether ``abort`` holds the process id."""
        return self.version >= (5, 0, 0)

    @property
    def writes_logics_physical_offset(self) -> bool:
        """Whether the checkpoint holds the last queued record's offset, required to start."""
        return self.version >= (5, 5, 0)

    def delay_levels_ms(self) -> tuple[int, ...]:
        """Return the delay of each level in milliseconds; level n is at index n - 1."""
        return _parse_delay_levels(self.message_delay_level)

    def commit_log_paths(self, store_root: Path) -> tuple[Path, ...]:
        """Return the commit log directories, in the broker's order (several are sorted).

        A path below the broker's own ``storePathRootDir`` is resolved below ``store_root``, so
        that a copied or mounted store is read at its current place.
        """
        if not self.store_path_commit_log:
            return (store_root / COMMIT_LOG_DIR,)
        names = sorted({p.strip() for p in self.store_path_commit_log.split(",") if p.strip()})
        return tuple(self._rebase(Path(name), store_root) for name in names)

    def _rebase(self, path: Path, store_root: Path) -> Path:
        if not path.is_absolute():
            return store_root / path
        if self.store_path_root_dir and path.is_relative_to(self.store_path_root_dir):
            return store_root / path.relative_to(self.store_path_root_dir)
        return path

    def shape(self) -> dict[str, str | int | bool]:
        """Return the settings that determine the bytes of the files; fixed for an OUTPUT."""
        values: dict[str, str | int | bool] = {"version": str(self.version)}
        for f in dataclasses.fields(self):
            if f.name not in _NOT_OF_SHAPE:
                values[f.name] = getattr(self, f.name)
        return values


def check_shape(
    made_with: Mapping[str, Any], config: StoreConfig, output: Path | str, hint: str
) -> None:
    """Raise ConfigError unless ``config`` has the shape of ``output``.

    The error gives the broker.conf name of the first setting that differs, and ends with ``hint``.
    """
    shape = config.shape()
    for name, value in made_with.items():
        if shape.get(name) != value:
            raise ConfigError(
                f"{output} was made with {setting_name(name)}={value}, not {shape.get(name)}; "
                f"{hint}"
            )


def setting_name(name: str) -> str:
    """Return the broker.conf name of a setting of the shape (``version`` is unchanged)."""
    first, *rest = name.split("_")
    return first + "".join(part.upper() if part == "crc" else part.capitalize() for part in rest)


def load_config(
    store_root: Path, broker_conf: Path | None = None, broker_version: str | None = None
) -> StoreConfig:
    """Read the settings in the broker.conf of ``store_root`` alone, unlike ``resolve_config``.

    ``broker_conf`` defaults to ``store_root/broker.conf``; if that is missing, the broker's
    defaults apply. Raises ConfigError for a malformed value, UnsupportedFormatError for a setting
    with which a broker writes unsupported files, StoreIOError.
    """
    values, path = broker_properties(store_root, broker_conf)
    version = BrokerVersion.parse(broker_version or DEFAULT_VERSION)
    refuse_unsupported_settings(values, path)
    config = config_from(values, version=version, origin=str(path))
    return replace(config, rocksdb_queues=rocksdb_queues(store_root, values))


def broker_properties(store_root: Path, broker_conf: Path | None) -> tuple[Mapping[str, str], Path]:
    """Return the properties of a broker, none if there is no file, and the file's path.

    Without ``broker_conf``, they are those of the store's own. Raises ConfigError, StoreIOError.
    """
    path = broker_conf if broker_conf is not None else store_root / BROKER_CONF
    if broker_conf is None and not path.exists():
        return {}, path
    return read_properties(path), path


def config_from(values: Mapping[str, str], *, version: BrokerVersion, origin: str) -> StoreConfig:
    """Build the settings from broker properties; ``origin`` names them in errors."""
    read = BrokerProperties(values, origin)
    unit = CQ_UNIT_SIZE
    cq_size = read.positive("mappedFileSizeConsumeQueue", 300_000 * unit)
    config = StoreConfig(
        version=version,
        mapped_file_size_commit_log=read.positive("mappedFileSizeCommitLog", 1024**3),
        mapped_file_size_consume_queue=-(-cq_size // unit) * unit,
        mapped_file_size_consume_queue_ext=read.positive(
            "mappedFileSizeConsumeQueueExt", 48 * 1024**2
        ),
        max_hash_slot_num=read.positive("maxHashSlotNum", 5_000_000),
        max_index_num=read.positive("maxIndexNum", 20_000_000),
        message_index_enable=read.flag("messageIndexEnable", default=True)
        and read.flag("indexFileWriteEnable", default=True),  # since 5.5.0
        enable_consume_queue_ext=read.flag("enableConsumeQueueExt"),
        enable_multi_dispatch=read.flag("enableMultiDispatch"),
        enable_lmq=read.flag("enableLmq"),
        enabled_append_prop_crc=read.flag("enabledAppendPropCRC"),
        message_delay_level=read.text("messageDelayLevel", DEFAULT_DELAY_LEVELS),
        enable_controller_mode=read.flag("enableControllerMode"),
        store_path_root_dir=read.text("storePathRootDir", ""),
        store_path_commit_log=read.text("storePathCommitLog", ""),
        answers=answer_limits(read, version),
    )
    _validate(config, origin)
    return config


def is_shape(shape: Mapping[str, object]) -> bool:
    """Return whether values could be the result of ``StoreConfig.shape``."""
    expected = StoreConfig().shape()
    if any(type(shape.get(name)) is not type(value) for name, value in expected.items()):
        return False
    sizes = [value for value in shape.values() if type(value) is int]
    if len(shape) != len(expected) or not all(0 < size <= _SIZE_MAX for size in sizes):
        return False
    try:
        _validate(config_from_shape(shape), "")
    except ConfigError:
        return False
    return True


Shape = Annotated[dict[str, Any], Check("the settings of an OUTPUT", is_shape)]


def config_from_shape(shape: Mapping[str, Any], *, commit_log: str = "") -> StoreConfig:
    """Build the settings from a shape, for a log at the paths ``commit_log``."""
    values = {k: v for k, v in shape.items() if k != "version"}
    version = BrokerVersion.parse(str(shape["version"]))
    return StoreConfig(version=version, store_path_commit_log=commit_log, **values)


def config_to_json(config: StoreConfig) -> str:
    """Encode all settings as JSON, to pass them to another process."""
    values = dataclasses.asdict(config)
    return json.dumps({**values, "version": str(config.version)}, sort_keys=True)


def config_from_json(text: str) -> StoreConfig:
    """Decode the result of ``config_to_json``."""
    values = json.loads(text)
    version, answers = BrokerVersion.parse(values.pop("version")), values.pop("answers")
    return StoreConfig(version=version, answers=AnswerLimits(**answers), **values)


def _validate(config: StoreConfig, origin: str) -> None:
    minimums = (
        ("mappedFileSizeCommitLog", config.mapped_file_size_commit_log,
         RECORD_MIN_SIZE + BLANK_SIZE),
        ("mappedFileSizeConsumeQueueExt", config.mapped_file_size_consume_queue_ext,
         EXT_UNIT_SIZE + EXT_END_BLANK_SIZE),
        ("maxIndexNum", config.max_index_num, 2),
    )  # fmt: skip
    for name, value, minimum in minimums:
        if value < minimum:
            raise ConfigError(f"{origin}: {name}={value} is too small; the minimum is {minimum}")
    _validate_file_sizes(config, origin)
    _parse_delay_levels(config.message_delay_level, f"{origin}: ")
    for name, text in (
        ("storePathRootDir", config.store_path_root_dir),
        ("storePathCommitLog", config.store_path_commit_log),
    ):
        if text and not _names_paths(text):
            raise ConfigError(f"{origin}: {name}={shown(text)} names no directory")


def _names_paths(text: str) -> bool:
    """Return whether a comma-separated text names a path and holds no invalid one."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return "\0" not in text and any(part.strip() for part in text.split(","))


def _validate_file_sizes(config: StoreConfig, origin: str) -> None:
    slots, entries = config.max_hash_slot_num, config.max_index_num
    queue_size = config.mapped_file_size_consume_queue
    file_sizes = (
        (f"mappedFileSizeConsumeQueue={queue_size}", "consume queue", queue_size),
        (f"maxHashSlotNum={slots} and maxIndexNum={entries}", "index",
         index_file_size(slots, entries)),
    )  # fmt: skip
    for setting, kind, size in file_sizes:
        if size > MAPPED_FILE_SIZE_MAX:
            raise ConfigError(
                f"{origin}: {setting}: {kind} files would have {size} bytes; a broker cannot map "
                f"more than {MAPPED_FILE_SIZE_MAX}"
            )


def _parse_delay_levels(text: str, origin: str = "") -> tuple[int, ...]:
    """Parse ``messageDelayLevel`` as ``DefaultMessageStore.parseDelayLevel``: single spaces."""
    setting = f"{origin}messageDelayLevel={shown(text)}"
    levels = []
    for part in java.split(text, " "):
        number = java.parse_int(part[:-1], bits=64)
        if not part or part[-1] not in _UNIT_MS or number is None:
            raise ConfigError(f"{setting}: {shown(part)} is not a number and s, m, h or d")
        delay = number * _UNIT_MS[part[-1]]
        if abs(delay) > _DELAY_MS_MAX:
            raise ConfigError(f"{setting}: {shown(part)} is more than {_DELAY_MS_MAX} milliseconds")
        levels.append(delay)
    return tuple(levels)
