"""The broker settings that decide which bytes a dispatch writes, for the executable model."""

from dataclasses import dataclass, fields
from pathlib import Path

Version = tuple[int, ...]

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
DELAY_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
CQ_UNIT_SIZE = 20

CONF_NAMES = {
    "commit_log_file_size": "mappedFileSizeCommitLog",
    "consume_queue_file_size": "mappedFileSizeConsumeQueue",
    "consume_queue_ext_file_size": "mappedFileSizeConsumeQueueExt",
    "max_hash_slot_num": "maxHashSlotNum",
    "max_index_num": "maxIndexNum",
    "message_index_enable": "messageIndexEnable",
    "enable_consume_queue_ext": "enableConsumeQueueExt",
    "enable_multi_dispatch": "enableMultiDispatch",
    "enable_lmq": "enableLmq",
    "message_delay_level": "messageDelayLevel",
    "enabled_append_prop_crc": "enabledAppendPropCRC",
}


@dataclass(frozen=True)
class ModelConfig:
    """A broker's configuration and version.

    `enabled_append_prop_crc` is the write side's switch only: a property CRC is checked wherever
    a record ends with one.
    """

    commit_log_file_size: int = 1 << 30
    consume_queue_file_size: int = 6_000_000
    consume_queue_ext_file_size: int = 50_331_648
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    enable_consume_queue_ext: bool = False
    enable_multi_dispatch: bool = False
    enable_lmq: bool = False
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    enabled_append_prop_crc: bool = False
    version: Version = (5, 3, 3)

    @classmethod
    def from_conf(cls, broker_conf: Path | None, version: str = "5.3.3") -> "ModelConfig":
        """Read a broker.conf (Java properties; None: all defaults) for a broker of `version`."""
        settings = read_properties(broker_conf) if broker_conf else {}
        values: dict[str, object] = {"version": parse_version(version)}
        for field in fields(cls):
            text = settings.get(CONF_NAMES.get(field.name, ""))
            if text is None:
                continue
            if isinstance(field.default, bool):
                values[field.name] = text.lower() == "true"
            else:
                values[field.name] = int(text) if isinstance(field.default, int) else text
        return cls(**values)  # type: ignore[arg-type]

    @property
    def queue_file_size(self) -> int:
        """The ConsumeQueue's file size as the broker uses it: rounded up to whole units."""
        return -(-self.consume_queue_file_size // CQ_UNIT_SIZE) * CQ_UNIT_SIZE

    @property
    def delays_ms(self) -> list[int]:
        """The delay of level 1, 2, …."""
        levels = self.message_delay_level.split(" ")
        return [int(level[:-1]) * DELAY_UNIT_MS[level[-1]] for level in levels]


def parse_version(text: str) -> Version:
    """Turn "5.3" or "5.3.3" into a tuple that compares; x.y alone means its last release."""
    parts = tuple(int(part) for part in text.split("."))
    return parts if len(parts) > 2 else (*parts, 99)


def read_properties(path: Path) -> dict[str, str]:
    """Read the plain `key=value` subset of Java properties that broker.conf files use."""
    settings = {}
    for line in map(str.strip, path.read_text("utf-8").splitlines()):
        if line and line[0] not in "#!" and "=" in line:
            key, value = line.split("=", 1)
            settings[key.strip()] = value.strip()
    return settings
