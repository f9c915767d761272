"""A ``broker.conf``, which is a Java properties file, and typed access to its values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import javaproperties

from store import java
from store.errors import (
    ConfigError,
    StoreIOError,
    UnsupportedFormatError,
    parse_fault,
    shown,
)
from store.io.file_system import read_small_file

_BYTES_MAX = 1024 * 1024


def read_properties(path: Path) -> Mapping[str, str]:
    """Read a properties file. Raises ConfigError if it is malformed, StoreIOError."""
    try:
        text = read_small_file(path, _BYTES_MAX)
    except OSError as e:
        raise StoreIOError("read", path, e) from e
    try:
        values: Mapping[str, str] = javaproperties.loads(text.decode("utf-8"))
    except (ValueError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is not a Java properties file: {parse_fault(e)}") from e
    return values


def refuse_unsupported_settings(values: Mapping[str, str], path: Path) -> None:
    """Raise UnsupportedFormatError for settings with which a broker writes another kind of log."""
    plug_in = values.get("messageStorePlugIn", "")
    found = [
        (java.parse_boolean(values.get("enableDLegerCommitLog", "")),
         "its log is a DLedger log (enableDLegerCommitLog=true)"),
        ("tiered" in plug_in.lower(),
         "it is a tiered store (messageStorePlugIn={messageStorePlugIn})"),
        (java.parse_boolean(values.get("enableCalcFilterBitMap", "")),
         "its queues hold bitmaps of filters not in the log (enableCalcFilterBitMap=true)"),
    ]  # fmt: skip
    for applies, reason in found:
        if applies:
            raise UnsupportedFormatError(
                f"{path}: {reason.format(**values)}; that is not supported"
            )


class BrokerProperties:
    """Typed access to broker properties; a ConfigError names origin, key and value."""

    def __init__(self, values: Mapping[str, str], origin: str) -> None:
        self._values = values
        self._origin = origin

    def text(self, name: str, default: str) -> str:
        """Return a value without surrounding whitespace."""
        return self._values.get(name, default).strip()

    def positive(self, name: str, default: int) -> int:
        """Return a positive 32-bit integer. Raises ConfigError."""
        raw = self._values.get(name)
        if raw is None:
            return default
        value = java.parse_int(raw.strip())
        if value is None or value <= 0:
            raise ConfigError(
                f"{self._origin}: {name}={shown(raw)} is not a positive 32-bit integer"
            )
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return true or false. Raises ConfigError."""
        raw = self._values.get(name)
        if raw is None:
            return default
        value = java.parse_boolean(raw)
        if value is None:
            raise ConfigError(f"{self._origin}: {name}={shown(raw)} is neither true nor false")
        return value
