"""What the console shows of its brokers, as metrics.

Queues and groups come from the cached listing of each broker: a scrape reads no queue, however
many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from reput.console.brokers import Broker
from reput.console.metrics import metric_names
from reput.console.metrics.metric_names import Node
from reput.console.metrics.running_query import DISPATCH
from reput.console.metrics.samples import Samples, metrics_response
from reput.console.metrics.storage import (
    measure_backlog,
    measure_drops,
    measure_groups,
    measure_incoming,
    measure_log,
    measure_timer,
    used_bytes,
)
from reput.console.pages import METRICS, load
from store.errors import StoreError
from store.identity import load_identity
from store.java import now_ms
from store.topics.overview import Overview


class ConsoleSource:
    """Measures the brokers of a console. Raises ConfigError, StoreIOError for their broker.conf."""

    def __init__(self, brokers: Iterable[Broker]) -> None:
        self._brokers = [(broker, _node(broker)) for broker in brokers]

    def __call__(self, samples: Samples) -> None:
        """Add the samples of one scrape."""
        for broker, node in self._brokers:
            status = broker.status()
            _measure_status(samples, node, status)
            _measure_counts(samples, node, broker)
            has_failed = status["problem"] is not None
            try:
                _measure_files(samples, node, broker)
            except StoreError:  # the pages show it
                has_failed = True
            samples.add(metric_names.STORE_READ_FAILED, node, int(has_failed))


async def metrics(request: Request) -> Response:
    """Answer a scrape of Prometheus."""
    return await load(request, lambda r: metrics_response([r.app.state.metrics]), METRICS)


def _node(broker: Broker) -> Node:
    """Return the broker's labels: its cluster, and the name that the console gives it."""
    identity = load_identity(broker.store_root, broker.source.broker_conf, broker.name)
    return Node(identity.cluster, identity.name)


def _measure_status(samples: Samples, node: Node, status: Mapping[str, Any]) -> None:
    samples.add(metric_names.DAMAGE, node, len(status["damage"]))
    if status["reput_from_offset"] is None:  # a broker's own files, or nothing is dispatched yet
        return
    measure_backlog(
        samples,
        node,
        behind_bytes=status["behind_bytes"],
        behind_ms=status["behind_ms"],
        stuck_ms=status["stuck_ms"],
    )
    lost = sum(gap["end"] - gap["begin"] for gap in status["lost"])
    samples.add(metric_names.LOST_BYTES, node, lost, DISPATCH)
    dropped = status["dropped"]
    measure_drops(samples, node, repeated=dropped["repeated"], gaps=dropped["gaps"])


def _measure_counts(samples: Samples, node: Node, broker: Broker) -> None:
    """Add what the monitor has counted, and the lag of groups as last listed."""
    measure_incoming(samples, node, broker.monitor.totals())
    overview = _overview(broker)
    if overview is not None:
        measure_groups(samples, node, overview.groups)


def _measure_files(samples: Samples, node: Node, broker: Broker) -> None:
    """Add what is read for this scrape: the oldest message, the file system, the timer wheel."""
    first = broker.log.min_phy_offset()
    oldest = None if first < 0 else broker.log.look_message_by_offset(first)
    reserve = None if oldest is None else max(now_ms() - oldest.store_timestamp, 0)
    measure_log(samples, node, used_bytes(broker.store_root), reserve)
    measure_timer(samples, node, broker.store_root, _overview(broker))


def _overview(broker: Broker) -> Overview | None:
    listing = broker.overview.get(0)
    return None if listing is None else listing.overview
