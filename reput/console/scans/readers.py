"""Functions that make the answers that take a scan of the log, for ``BackgroundCache``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from reput.console.scans.selections import Selections

if TYPE_CHECKING:
    from pathlib import Path

    from store.config import StoreConfig
    from store.usage import Expiry, Usage

USAGE_BY = ("topic", "day", "queue", "tag", "host")  # the values of store.usage.By


def pending_reader(
    store_root: Path, config: StoreConfig, broker_conf: Path | None
) -> Callable[[int, threading.Event], Selections]:
    """Return a function that reads the pending messages of a store, finished ones too."""

    def read(now: int, stop: threading.Event) -> Selections:
        from store.pending.broker_settings import load_hold_settings  # noqa: PLC0415 - likewise
        from store.pending.find_pending import PendingFilter, find_pending  # noqa: PLC0415 - pyarrow

        settings = load_hold_settings(store_root, broker_conf)
        wanted = PendingFilter(with_finished=True)
        return Selections(
            find_pending(store_root, config, wanted, now=now, settings=settings, stop=stop)
        )

    return read


def usage_reader(
    store_root: Path, config: StoreConfig, broker_conf: Path | None, by: str
) -> Callable[[int, threading.Event], tuple[Usage, Sequence[Expiry]]]:
    """Return a function that counts the messages of a store, and says when its files expire."""

    def read(_now: int, stop: threading.Event) -> tuple[Usage, Sequence[Expiry]]:
        from store.usage import By, expiries, measure_usage  # noqa: PLC0415 - loads pyarrow

        usage = measure_usage(store_root, config, By(by), stop=stop)
        return usage, expiries(store_root, config, broker_conf)

    return read
