"""The settings of the console, as ``reput serve`` was given them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from store.commitlog.compression import BODY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class BrokerSource:
    """A broker to show: ``output`` holds its queues and index, None if the store itself does."""

    name: str
    store_root: Path
    output: Path | None = None
    broker_conf: Path | None = None
    broker_version: str | None = None


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Who may connect, and the limits. Times are in seconds, sizes in bytes.

    ``token`` is the password of HTTP Basic, None for no authentication. ``allowed_hosts`` are the
    names in lower case that a request's Host may have.
    """

    allowed_hosts: frozenset[str] = frozenset({"localhost", "127.0.0.1", "::1"})
    token: str | None = None
    max_body_bytes: int = BODY_BYTES_MAX
    stuck_after: float = 60.0
    searches_max: int = 4
    client_searches_max: int = 3
    tails_max: int = 200
