"""Settings of a broker that decide on pending messages only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from store.broker_properties import BrokerProperties
from store.config import broker_properties
from store.pending.states import Kind


@dataclass(frozen=True, slots=True)
class HoldSettings:
    """The settings; the defaults are the broker's (``BrokerConfig``, ``MessageStoreConfig``).

    ``transaction_timeout_ms`` is the age at which a half message is first checked,
    ``timer_precision_ms`` the width of a slot of the timer wheel, ``timer_window_slots`` how many
    slots ahead a message is stored in its last slot: one due later is rolled.
    ``delete_key_has_topic`` is whether a cancellation names the real topic too, since 5.4.0.
    ``timers_in_rocksdb`` and ``transactions_in_rocksdb``, since 5.5.0: the state is in RocksDB.
    """

    transaction_timeout_ms: int = 6000
    timer_precision_ms: int = 1000
    timer_window_slots: int = 2 * 24 * 3600
    delete_key_has_topic: bool = False
    timers_in_rocksdb: bool = False
    transactions_in_rocksdb: bool = False

    def left_out(self) -> dict[Kind, str]:
        """Return the kinds whose state is not read, each with the setting that says so."""
        settings = {
            Kind.TIMER: (self.timers_in_rocksdb, "timerRocksDBEnable=true"),
            Kind.HALF: (self.transactions_in_rocksdb, "transRocksDBEnable=true"),
        }
        return {kind: setting for kind, (is_out, setting) in settings.items() if is_out}

    @property
    def timer_window_ms(self) -> int:
        """The longest time that a message stays in one slot."""
        return self.timer_precision_ms * self.timer_window_slots


def load_hold_settings(store_root: Path, broker_conf: Path | None = None) -> HoldSettings:
    """Read a broker.conf, by default that of the store. Raises ConfigError, StoreIOError."""
    values, path = broker_properties(store_root, broker_conf)
    read = BrokerProperties(values, str(path))
    default = HoldSettings()
    return HoldSettings(
        read.positive("transactionTimeOut", default.transaction_timeout_ms),
        read.positive("timerPrecisionMs", default.timer_precision_ms),
        read.positive("timerRollWindowSlot", default.timer_window_slots),
        read.flag("appendTopicForTimerDeleteKey"),
        read.flag("timerRocksDBEnable"),
        read.flag("transRocksDBEnable"),
    )
