"""The stores that a read names: by path, by several paths, or by globs."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from store.config import BROKER_CONF, load_identity
from store.errors import ConfigError, StoreError, shown
from store.layout import COMMIT_LOG_DIR
from streaming.sources.options import SourceOptions


@dataclass(frozen=True, slots=True)
class Store:
    """The store of one broker."""

    root: str
    broker: str


def find_stores(
    options: SourceOptions, skip: Callable[[str, StoreError], None] | None = None
) -> tuple[Store, ...]:
    """Return the stores that exist now, in the order of the paths, those of a glob by name.

    A broker's name is that of option ``brokerNames``, else ``brokerName`` of its broker.conf, else
    the folder's name. Raises ConfigError if two stores have the same one, StoreIOError. ``skip`` is
    called with a path and why its broker.conf cannot be read, instead of raising that.
    """
    roots: dict[str, str] = {}  # by broker
    for root in dict.fromkeys(root for path in options.paths for root in _matches(path)):
        try:
            name = _broker_name(root, options)
        except StoreError as e:
            if skip is None:
                raise
            skip(root, e)
            continue
        if name in roots:
            raise ConfigError(
                f"{roots[name]} and {root} are both stores of broker {shown(name)}: name them with "
                f'option \'brokerNames\', such as {{"{root}": "other"}}'
            )
        roots[name] = root
    return tuple(Store(root, name) for name, root in roots.items())


def _broker_name(root: str, options: SourceOptions) -> str:
    name = options.broker_names.get(root.rstrip("/")) or load_identity(Path(root)).name
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as e:
        reason = f"the broker's name {shown(name)} is not text"
        raise ConfigError(f"{root}: {reason}; give it another with option 'brokerNames'") from e
    return name


def _matches(path: str) -> Iterator[str]:
    """Yield a path, or the stores that match it as a glob."""
    if not glob.has_magic(path) or Path(path).exists():
        yield path
        return
    for match in sorted(glob.glob(path)):
        root = Path(match)
        if (root / COMMIT_LOG_DIR).is_dir() or (root / BROKER_CONF).is_file():
            yield match
