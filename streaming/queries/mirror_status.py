"""The status of a mirror: its position in Kafka, compared with the end of the log.

It reads only: no producer is created, which would end a running mirror, and no topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from store.commitlog.commit_log import CommitLog
from store.errors import ConfigError
from store.output.dispatch_status import DispatchStatus, status_at
from store.output.resolve_config import open_store_config
from streaming.kafka.client_options import client_options
from streaming.kafka.cluster import Cluster
from streaming.kafka.position import default_name, read_position
from streaming.queries.mirror_query import MirrorOptions, check_belongs


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """The position of a mirror, when it was committed, and how far the log is ahead of it."""

    name: str
    progress: DispatchStatus
    messages: int  # mirrored under this name
    oversized: int


def read_mirror_status(store_root: Path, options: MirrorOptions) -> MirrorStatus:
    """Read the status of the mirror that these options describe.

    Raises ConfigError if it has no position yet or belongs to another store, DamageError if the
    log changed, KafkaIOError, StoreIOError.
    """
    broker = options.broker_conf, options.broker_version
    config = open_store_config(store_root, None, *broker, needs_log=False)
    client = client_options(options.bootstrap, options.properties)
    name = options.name or default_name(store_root, options.rules.prefix)
    cluster = Cluster(client)
    try:
        has_topic = cluster.partitions(options.position_topic) > 0
    finally:
        cluster.close()
    found = read_position(client, options.position_topic, name, waits=False) if has_topic else None
    if found is None:
        raise ConfigError(
            f"mirror {name!r} has no position in topic {options.position_topic} of Kafka at "
            f"{client}: it has not mirrored anything"
        )
    position, log = found.position, CommitLog(config.commit_log_paths(store_root), config)
    check_belongs(log, position, store_root, name)
    progress = status_at(log, position.commit_log_offset, found.timestamp)
    return MirrorStatus(name, progress, position.messages, position.oversized)
