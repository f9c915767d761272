"""``--metrics-port``: the metrics of a running dispatch or mirror, and its health."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.options import SessionOptions
from store.errors import ConfigError, StoreError
from store.java import now_ms

if TYPE_CHECKING:
    from reput.cli.long_running import LineReporter
    from reput.cli.stores import NamedStore
    from reput.console.metrics.endpoint import MetricsEndpoint
    from reput.console.metrics.metric_names import Node
    from reput.console.metrics.running_query import BatchDurations, DispatchCounts, MirrorCounts
    from reput.console.metrics.storage import LogReader, Position
    from streaming.kafka.arrivals import KafkaArrivals
    from streaming.queries.dispatch_query import PreparedDispatch
    from streaming.queries.mirror_query import PreparedMirror
    from streaming.sinks.ordered_sink import BatchSink

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class MetricsOptions(SessionOptions):
    """How to run a long-running query, and where to serve its metrics, if at all."""

    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve /metrics (Prometheus) and /healthz at this port; 0: any free one.",
        ),
    ] = None
    metrics_host: Annotated[
        str | None, typer.Option(help=f"The address to serve them at [default: {_LOOPBACK}]")
    ] = None


@contextmanager
def metrics_endpoint(
    options: MetricsOptions, reporter: LineReporter
) -> Iterator[MetricsEndpoint | None]:
    """Yield the endpoint, None without ``--metrics-port``; close it at the end.

    Raises ConfigError, also if the port is in use.
    """
    if options.metrics_port is None:
        if options.metrics_host is not None:
            raise ConfigError("--metrics-host needs --metrics-port")
        yield None
        return
    from reput.console.metrics.endpoint import MetricsEndpoint

    host = options.metrics_host or _LOOPBACK
    with MetricsEndpoint(host, options.metrics_port) as endpoint:
        reporter.say("metrics", f"metrics at {endpoint.url}", url=endpoint.url)
        if not endpoint.is_loopback:
            text = f"everyone who reaches {host} can read the metrics: they have no password"
            reporter.say("warning", text, metrics_host=host)
        yield endpoint


@dataclass(frozen=True, slots=True)
class ShownDispatch:
    """A dispatch whose metrics are served."""

    prepared: PreparedDispatch
    durations: BatchDurations
    store: NamedStore
    arrivals: KafkaArrivals | None = None


def show_dispatch(endpoint: MetricsEndpoint, shown: ShownDispatch, stuck_after: float) -> None:
    """Serve the metrics and the health of a dispatch. Raises ConfigError, StoreIOError."""
    from reput.console.metrics.running_query import DispatchCounts, DispatchSource
    from reput.console.metrics.storage import LogReader, Position
    from store.output.dispatch_status import progress_timestamp

    prepared, arrivals = shown.prepared, shown.arrivals
    output, sink = prepared.output, prepared.sink

    def position() -> Position:
        written = progress_timestamp(output.path)  # first: never newer than the offset
        return Position(sink.counts.durable_to, written)

    def counts() -> DispatchCounts:
        progress = output.progress
        return DispatchCounts(
            sink=sink.counts,
            recoveries=len(output.recovered),
            lost=[(lost.begin, lost.end) for lost in progress.lost],
            repeated=sum(drops["repeated"] for drops in progress.drops.values()),
            gaps=sum(drops["gaps"] for drops in progress.drops.values()),
            arrivals=None if arrivals is None else asdict(arrivals.counts),
        )

    store_root = Path(output.progress.store)
    log = LogReader(store_root, prepared.config, position)
    node = _node(store_root, prepared.options.broker_conf, shown.store.name or shown.store.given)
    source = DispatchSource(node, log, shown.durations, counts)
    endpoint.show(source, lambda: _of_broker(shown.store.name, _fault(sink, log, stuck_after)))


def show_failure(endpoint: MetricsEndpoint, name: str, error: Exception) -> None:
    """Serve a failure of one of several dispatches, which has no metrics, as its health."""
    endpoint.show(lambda _: None, lambda: _of_broker(name, _failed(error)))


def show_mirror(
    endpoint: MetricsEndpoint,
    prepared: PreparedMirror,
    durations: BatchDurations,
    stuck_after: float,
) -> None:
    """Serve the metrics and the health of a mirror. Raises ConfigError, StoreIOError."""
    from reput.console.metrics.running_query import MirrorCounts, MirrorSource
    from reput.console.metrics.storage import LogReader, Position

    sink = prepared.sink
    last = Position(sink.position.commit_log_offset, now_ms())

    def position() -> Position:
        """Return the position, and when a scrape first saw it."""
        nonlocal last
        offset = sink.position.commit_log_offset
        if offset != last.offset:
            last = Position(offset, now_ms())
        return last

    def counts() -> MirrorCounts:
        at = sink.position
        lost = [(lost.begin, lost.end) for lost in sink.lost]
        return MirrorCounts(sink.counts, at.messages, at.oversized, lost)

    log = LogReader(prepared.store_root, prepared.config, position)
    node = _node(prepared.store_root, prepared.options.broker_conf)
    source = MirrorSource(node, prepared.name, log, durations, counts)
    endpoint.show(source, lambda: _fault(sink, log, stuck_after))


def _node(store_root: Path, broker_conf: Path | None, name: str = "") -> Node:
    from reput.console.metrics.metric_names import Node
    from store.identity import load_identity

    identity = load_identity(store_root, broker_conf, name)
    return Node(identity.cluster, identity.name)


def _fault(sink: BatchSink, log: LogReader, stuck_after: float) -> str:
    """Return why a query is unhealthy, "" if it is not; the text holds no name from a store."""
    if sink.error is not None:
        return _failed(sink.error)
    try:
        return log.read().fault(stuck_after)
    except StoreError as e:
        return f"failed: the store cannot be read ({type(e).__name__})"


def _failed(error: BaseException) -> str:
    return f"failed: {type(error).__name__}; the log of the process has the details"


def _of_broker(name: str, fault: str) -> str:
    return f"{name}: {fault}" if name and fault else fault
