"""The stores that a read names: by path, by several paths, or by globs."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from store.config import BROKER_CONF, StoreConfig
from store.errors import ConfigError, StoreError, shown
from store.identity import store_name
from store.layout import COMMIT_LOG_DIR
from store.output.resolve_config import check_fits_all, find_config
from streaming.sources.options import ByBroker, SourceOptions


@dataclass(frozen=True, slots=True)
class Store:
    """The store of one broker, and the settings given for it."""

    store_root: str
    broker: str
    broker_conf: str | None = None
    broker_version: str | None = None

    def config(self) -> StoreConfig:
        """Return the settings of its log. Raises ConfigError, UnsupportedFormatError."""
        conf = None if self.broker_conf is None else Path(self.broker_conf)
        return find_config(Path(self.store_root), None, conf, self.broker_version)


def find_stores(
    options: SourceOptions, skip: Callable[[str, StoreError], None] | None = None
) -> tuple[Store, ...]:
    """Return the stores that exist now, in the order of the paths, those of a glob by name.

    A broker's name is that of option ``brokerNames``, else ``brokerName`` of its broker.conf, else
    the folder's name. Raises ConfigError if two stores have the same one, or if a broker.conf for
    all of them gives two the same log; StoreIOError. ``skip`` is
    called with a path and why its broker.conf cannot be read, instead of raising that.
    """
    found: dict[str, Store] = {}  # by broker
    for store_root in dict.fromkeys(
        store_root for path in options.paths for store_root in _matches(path)
    ):
        try:
            store = _store(store_root, options)
        except StoreError as e:
            if skip is None:
                raise
            skip(store_root, e)
            continue
        if store.broker in found:
            raise ConfigError(
                f"{found[store.broker].store_root} and {store_root} are both stores of broker "
                f"{shown(store.broker)}: name them with option 'brokerNames', such as "
                f'{{"{store_root}": "other"}}'
            )
        found[store.broker] = store
    if isinstance(options.broker_conf, str):
        check_fits_all(Path(options.broker_conf), [Path(s.store_root) for s in found.values()])
    return tuple(found.values())


def _store(store_root: str, options: SourceOptions) -> Store:
    given = options.broker_names.get(store_root.rstrip("/"), "")
    conf = options.broker_conf
    name = store_name(Path(store_root), Path(conf) if isinstance(conf, str) else None, given)
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as e:
        reason = f"the broker's name {shown(name)} is not text"
        raise ConfigError(
            f"{store_root}: {reason}; give it another with option 'brokerNames'"
        ) from e
    return Store(
        store_root,
        name,
        _of_broker("brokerConf", conf, name),
        _of_broker("brokerVersion", options.broker_version, name),
    )


def _of_broker(option: str, value: ByBroker, broker: str) -> str | None:
    """Return the value of one broker. Raises ConfigError if the option lacks it."""
    if value is None or isinstance(value, str):
        return value
    if broker not in value:
        raise ConfigError(
            f"option {option!r} has no value for broker {shown(broker)}, only for "
            f"{', '.join(map(shown, value))}; option 'brokerNames' names brokers by path"
        )
    return value[broker]


def _matches(path: str) -> Iterator[str]:
    """Yield a path, or the stores that match it as a glob."""
    if not glob.has_magic(path) or Path(path).exists():
        yield path
        return
    for match in sorted(glob.glob(path)):
        store_root = Path(match)
        if (store_root / COMMIT_LOG_DIR).is_dir() or (store_root / BROKER_CONF).is_file():
            yield match
