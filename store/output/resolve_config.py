"""The settings of a store: given, recorded, or seen in its files, in one order for all readers.

Each setting is taken from the first of these that has it:

1. the ``broker.conf`` that was given, else the store's own;
2. OUTPUT's progress: the settings that its files were made with;
3. the names and sizes of the files (``store.output.file_sizes``);
4. the broker's defaults.

Files do not show flags and delay levels. A broker whose ``broker.conf`` lacks one has its default,
so 2 counts for them only where no ``broker.conf`` was given. A read of a dispatched OUTPUT takes
everything from 2 if no ``broker.conf`` was given, whatever the store's own says by now.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from store.broker_properties import refuse_unsupported_settings
from store.commitlog.commit_log import CommitLog
from store.config import (
    DEFAULT_VERSION,
    BrokerVersion,
    StoreConfig,
    broker_properties,
    check_shape,
    config_from,
    config_from_shape,
    is_shape,
    load_config,
    setting_name,
)
from store.errors import ConfigError, DamageError, NoLogError
from store.layout import CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR, INDEX_DIR
from store.output.file_sizes import (
    IndexShape,
    index_file_paths,
    index_shape,
    log_file_size,
    queue_file_size,
)
from store.output.progress import PROGRESS, ProgressView, read_progress_view
from store.rocksdb import require_no_rocksdb, rocksdb_queues
from store.unsupported import (
    refuse_controller_mode,
    refuse_dledger_directory,
    refuse_unsupported_store,
    require_log_directory,
    require_log_files,
)

_OMIT_HINT = "omit the option: OUTPUT records its own settings"
_LOG_SIZE = "mapped_file_size_commit_log"
_QUEUE_SIZES = {
    "mapped_file_size_consume_queue": CONSUME_QUEUE_DIR,
    "mapped_file_size_consume_queue_ext": CONSUME_QUEUE_EXT_DIR,
}
_SLOTS, _ENTRIES = "max_hash_slot_num", "max_index_num"
_SHOWN = (_LOG_SIZE, *_QUEUE_SIZES, _SLOTS, _ENTRIES)  # the settings that files show

_log = logging.getLogger(__name__)
_said: set[str] = set()


def find_config(
    store_root: Path,
    output: Path | None,
    broker_conf: Path | None,
    broker_version: str | None,
    *,
    may_lack_log: bool = False,
) -> StoreConfig:
    """Return the settings with which a store is read; None: its log alone.

    ``may_lack_log``: there need not be a directory of a commit log yet.

    Raises NoLogError, ConfigError if something is missing or contradictory,
    UnsupportedFormatError, and for the progress record DamageError, StoreIOError.
    """
    _require_store(store_root)
    if output is not None and not output.is_dir():
        raise ConfigError(f"{output} is not a directory")
    found = _Settings(store_root, output, broker_conf, broker_version)
    config = found.resolve()
    with suppress(NoLogError) if may_lack_log else nullcontext():
        if found.progress is None:
            refuse_unsupported_store(store_root, config)
        else:
            require_log_directory(store_root, config)
    return config


def open_store_config(
    store_root: Path,
    output: Path | None,
    broker_conf: Path | None,
    broker_version: str | None,
    *,
    needs_log: bool,
) -> StoreConfig:
    """Return the settings with which OUTPUT is written; None: the log of a store is read alone.

    The store's own ``broker.conf`` counts too, and ``DispatchOutput`` checks that all settings are
    those that OUTPUT was made with. ``needs_log`` refuses a commit log without files.

    Raises ConfigError, UnsupportedFormatError, DamageError for the progress record, StoreIOError.
    """
    _require_store(store_root)
    found = _Settings(store_root, output, broker_conf, broker_version, is_written=True)
    config = found.resolve(checks_queues=False)  # a rebuild replaces them, an adoption compares
    refuse_unsupported_store(store_root, config)
    if output is not None:
        refuse_controller_mode(store_root, config)
        require_no_rocksdb(store_root, output, config.rocksdb_queues)
        if found.progress is None:
            from store.consumequeue.extension import (  # noqa: PLC0415 - loads the kernels
                refuse_filter_bitmaps,
            )

            refuse_filter_bitmaps(output)
    if needs_log:
        require_log_files(store_root, config)
    return config


def config_to_compare(
    store_root: Path, output: Path | None, broker_conf: Path | None, broker_version: str | None
) -> StoreConfig:
    """Return the settings with which OUTPUT is compared; the caller checks that they fit.

    Raises as ``open_store_config``.
    """
    _require_store(store_root)
    return _Settings(store_root, output, broker_conf, broker_version, is_written=True).resolve()


def check_fits_all(broker_conf: Path, store_roots: Sequence[Path]) -> None:
    """Raise ConfigError if a ``broker.conf`` gives two stores the same log."""
    seen: dict[Path, Path] = {}
    for store_root in store_roots:
        config = load_config(store_root, broker_conf)
        for path in config.commit_log_paths(store_root):
            first = seen.setdefault(path.resolve(), store_root)
            if first != store_root:
                raise ConfigError(
                    f"{broker_conf} gives {first} and {store_root} the same commit log, {path}: it "
                    "is the broker.conf of one broker"
                )


def _require_store(store_root: Path) -> None:
    if not store_root.is_dir():
        raise ConfigError(f"{store_root} is not a directory: give the broker's storePathRootDir")
    refuse_dledger_directory(store_root)


class _Settings:
    """What is known of a store's settings, and from where."""

    def __init__(
        self,
        store_root: Path,
        output: Path | None,
        broker_conf: Path | None,
        broker_version: str | None,
        *,
        is_written: bool = False,
    ) -> None:
        self.progress = None if output is None else read_progress_view(output)
        self._store_root, self._output, self._version = store_root, output, broker_version
        self._values, self._conf = broker_properties(store_root, broker_conf)
        refuse_unsupported_settings(self._values, self._conf)
        self._is_given = broker_conf is not None
        self._is_written = is_written
        self._follows_conf = self._is_given or (is_written and bool(self._values))
        # What no file was made with yet gives way to what the log's files show by now.
        is_unused = is_written and self.progress is not None and _is_unused(self.progress)
        self._recorded = None if is_unused else self.progress
        self._origins: dict[str, str] = {}  # of the settings that are known, of those in _SHOWN

    def resolve(self, *, checks_queues: bool = True) -> StoreConfig:
        """Return the settings, and say which of them the files have shown.

        ``checks_queues`` refuses settings that all files of OUTPUT contradict.
        """
        config, shown = self._with_shown(self._known(), checks_queues=checks_queues)
        if shown:
            _say_assumed(self._store_root, shown)
        return replace(config, rocksdb_queues=rocksdb_queues(self._store_root, self._values))

    def _known(self) -> StoreConfig:
        """Return the settings that are given or recorded, and the defaults."""
        progress = self.progress
        version = self._version or (str(progress.shape["version"]) if progress else DEFAULT_VERSION)
        conf = config_from(
            self._values, version=BrokerVersion.parse(version), origin=str(self._conf)
        )
        if progress is None or self._follows_conf:
            config, option = conf, "--broker-conf " if self._is_given else ""
            named = {name for name in _SHOWN if setting_name(name) in self._values}
            self._origins = dict.fromkeys(named, f"{option}{self._conf}")
        else:
            config = _config_of(progress, conf if self._values else None, conf.version)
        if self._recorded is not None:
            others = [name for name in _SHOWN if name not in self._origins]
            config = replace(config, **{name: self._recorded.shape[name] for name in others})
            assert self._output is not None
            self._origins |= dict.fromkeys(others, str(self._output / PROGRESS))
        if progress is not None and not self._is_written:
            check_shape(progress.shape, config, "this OUTPUT", _OMIT_HINT)
        return config

    def _with_shown(
        self, config: StoreConfig, *, checks_queues: bool
    ) -> tuple[StoreConfig, dict[str, int]]:
        """Return settings with those that files show, and these. Raises ConfigError."""
        paths = config.commit_log_paths(self._store_root)
        size = log_file_size(paths, config.mapped_file_size_commit_log, config)
        where = " and ".join(map(str, paths))
        shown = {} if size is None else {_LOG_SIZE: size}
        self._check(shown, config, f"the files of {where} have {size} bytes")
        if self._output is not None and self._recorded is None:
            directory = self._output if _has_queues(self._output) else self._store_root
            for found, seen in (
                *self._of_queues(directory, config),
                self._of_index(directory, config),
            ):
                if checks_queues:
                    self._check(found, config, seen)
                shown |= {name: n for name, n in found.items() if name not in self._origins}
        values: dict[str, Any] = {**shown}
        changed = replace(config, **values)
        return (changed, shown) if is_shape(changed.shape()) else (config, {})

    def _of_queues(
        self, directory: Path, config: StoreConfig
    ) -> Iterator[tuple[dict[str, int], str]]:
        """Yield the sizes that the files of queues show, and how to say so."""
        for name, kind in _QUEUE_SIZES.items():
            is_given = name in self._origins
            size = queue_file_size(directory / kind, getattr(config, name), is_given=is_given)
            if size is not None:
                yield {name: size}, f"the files in {directory / kind} have {size} bytes"

    def _of_index(self, directory: Path, config: StoreConfig) -> tuple[dict[str, int], str]:
        """Return the numbers that the files of the index show, and how to say so."""
        default = IndexShape(config.max_hash_slot_num, config.max_index_num)
        given = (
            default.slots if _SLOTS in self._origins else None,
            default.entries if _ENTRIES in self._origins else None,
        )
        index = directory / INDEX_DIR
        files = index_file_paths(index) if config.message_index_enable else []
        shape = index_shape(files, given, default) or default
        both = {_SLOTS: shape.slots, _ENTRIES: shape.entries}
        shown = {name: n for name, n in both.items() if n != getattr(config, name)}
        numbers = f"{shape.slots} slots and {shape.entries} entries"
        return shown, f"the files in {index} have {numbers}"

    def _check(self, shown: Mapping[str, int], config: StoreConfig, seen: str) -> None:
        """Raise ConfigError if all files contradict a setting that is known."""
        for name in shown:
            if name in self._origins:
                raise ConfigError(
                    f"{self._origins[name]}: {setting_name(name)}={getattr(config, name)}, but "
                    f"{seen}; give the broker.conf that they were written with"
                )


def _config_of(
    progress: ProgressView, conf: StoreConfig | None, version: BrokerVersion
) -> StoreConfig:
    """Return the settings that OUTPUT was made with; ``conf`` has what its files do not fix."""
    config = replace(
        config_from_shape(progress.shape, commit_log=progress.commit_log),
        version=version,
        store_path_root_dir=progress.store,  # the store may have been moved since
    )
    if conf is None:
        return config
    return replace(
        config,
        store_path_root_dir=conf.store_path_root_dir,
        store_path_commit_log=conf.store_path_commit_log,
        answers=conf.answers,
    )


def _is_unused(progress: ProgressView) -> bool:
    """Return whether no file of OUTPUT was made with the recorded settings yet."""
    return progress.batch == 0 and progress.last_record is None and not progress.index_files


def _has_queues(output: Path) -> bool:
    return any((output / kind).is_dir() for kind in (CONSUME_QUEUE_DIR, INDEX_DIR))


def _say_assumed(store_root: Path, shown: Mapping[str, int]) -> None:
    """Say once for each store which settings its files have shown."""
    settings = ", ".join(f"{setting_name(name)}={value}" for name, value in shown.items())
    line = f"{store_root}: assumed from the sizes of its files: {settings}"
    if line not in _said:
        _said.add(line)
        _log.warning("%s", line)


def check_last_record(
    progress: ProgressView, log: CommitLog, store_root: Path, output: Path
) -> None:
    """Raise unless the log still holds the last dispatched record, or that record has expired."""
    last = progress.last_record
    if last is None or last.offset < log.min_offset():
        return
    reason = "the log no longer holds the record dispatched last"
    try:
        found = log.message(last.offset, last.size)
        is_same = (found.store_timestamp, found.body_crc) == (last.store_timestamp, last.body_crc)
    except DamageError as e:
        is_same, reason = False, f"{reason}: {e.reason}"
    if is_same:
        return
    error = other_store_error(output, progress.store, store_root, reason)
    if error is not None:
        raise error
    raise DamageError(log.path_of(last.offset), last.offset, reason, "it was truncated or replaced")


def other_store_error(
    output: Path, made_from: str, store_root: Path, reason: str
) -> ConfigError | None:
    """Return the error for a changed log if OUTPUT was made from a store at another path.

    None if the path is the same. A store that was moved or copied holds the same records, so it is
    read at its new path and gets here only if its log differs.
    """
    if made_from == str(store_root.resolve()):
        return None
    return ConfigError(f"{output} was made from {made_from}, not from {store_root}: {reason}")
