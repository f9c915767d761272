"""The monitor of a log: counts what arrives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from store.config import StoreConfig


class LogMonitor:
    """Follows the log of one store from its current end, in a thread of its own."""

    def __init__(self, store_root: Path, config: StoreConfig) -> None:
        self.store_root = store_root
        self.config = config

    def start(self) -> None:
        """Start the thread."""

    def close(self) -> None:
        """Stop the thread."""

    def status(self) -> dict[str, Any]:
        """Return the counts."""
        return {"messages_in": 0, "bytes_in": 0, "monitor_timestamp": None}

    def rate(self, topic: str) -> float | None:
        """Return the messages per second of a topic in the last minute."""
        return None
