"""The overview of a store as JSON objects, as ``reput topics --json`` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from store.broker_files import ConfigFile, TopicConfig
from store.topics.consumer_lag import Lag
from store.topics.overview import Overview
from store.topics.queue_state import QueueState


def overview_rows(overview: Overview) -> Iterator[dict[str, Any]]:
    """Yield one object per topic, queue, group and queue, delay level, and file; times are ms."""
    for topic in overview.topics:
        yield {
            "row": "topic",
            "topic": topic.topic,
            "queue_ids": [queue.queue_id for queue in topic.queues],
            "config": config_json(topic.config),
        }
        for queue in topic.queues:
            yield {"row": "queue", **queue_json(queue)}
    for group, lag in overview.groups:
        yield {"row": "group", "group": group, **lag_json(lag)}
    for level, lag in overview.delay_levels:
        yield {"row": "delay_level", "level": level, **lag_json(lag)}
    for file in overview.files:
        yield {"row": "config_file", **file_json(file)}


def queue_json(queue: QueueState) -> dict[str, Any]:
    """Return a queue: offsets, and store times in ms (-1: none); or its damage."""
    if queue.damage is not None:
        ref = {"topic": queue.topic, "queue_id": queue.queue_id}
        return {**ref, "damage": str(queue.damage)}
    return {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "earliest_timestamp": queue.earliest_timestamp,
        "latest_timestamp": queue.latest_timestamp,
        "repeated": queue.repeated,
        "gaps": queue.gaps,
    }


def lag_json(lag: Lag) -> dict[str, Any]:
    """Return a lag in messages and ms; fields are null if unknown."""
    damage = lag.damage or lag.queue.damage
    return {
        "topic": lag.queue.topic,
        "queue_id": lag.queue.queue_id,
        "offset": lag.offset,
        "max_offset": lag.queue.max_offset,
        "lag": lag.messages,
        "lag_ms": lag.milliseconds,
        "next_timestamp": lag.next_timestamp,
        "expired": lag.expired,
        **({} if damage is None else {"damage": str(damage)}),
    }


def config_json(config: TopicConfig | None) -> dict[str, Any] | None:
    """Return a topic's configuration, None if unknown."""
    return None if config is None else asdict(config)


def file_json(file: ConfigFile[Any]) -> dict[str, Any]:
    """Return where one of the broker's own files was read from, and its problem or None."""
    return {
        "path": str(file.path),
        "read_from": None if file.read_from is None else str(file.read_from),
        "problem": file.problem or None,
    }
