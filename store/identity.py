"""The name of a store: that of its broker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from store.broker_properties import BrokerProperties
from store.config import broker_properties

DEFAULT_CLUSTER = "DefaultCluster"


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The names of a broker, and of its cluster."""

    cluster: str
    name: str


def load_identity(
    store_root: Path, broker_conf: Path | None = None, name: str = ""
) -> BrokerIdentity:
    """Return the names of the broker and its cluster. Raises ConfigError, StoreIOError.

    Everything that shows a store takes its name from here: ``name`` if it is given, else
    ``brokerName`` of ``broker_conf``, or of the store's broker.conf without that. A broker without
    ``brokerName`` uses its host's name, which the store does not record: the name of the store's
    directory stands for it.
    """
    values, path = broker_properties(store_root, broker_conf)
    read = BrokerProperties(values, str(path))
    name = name or read.text("brokerName", "") or store_root.resolve().name
    return BrokerIdentity(read.text("brokerClusterName", "") or DEFAULT_CLUSTER, name)


def store_name(store_root: Path, broker_conf: Path | None, given: str) -> str:
    """Return the name of a store, as ``load_identity``; with a ``given`` one no file is read."""
    return given or load_identity(store_root, broker_conf).name
