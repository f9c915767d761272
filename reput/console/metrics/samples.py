"""The samples of one scrape, and their text.

A collector of its own, in a registry of its own: nothing is kept between two scrapes, so a topic
or a group that no longer exists leaves no series behind (ADR 0048).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.responses import Response

from reput.console.metrics.metric_names import OMITTED_SERIES, Family, Node
from store.printable import printable

SERIES_MAX = 50_000  # of one metric in a scrape, as metricsOtelCardinalityLimit of a broker
LABEL_CHARACTERS_MAX = 512
BUCKETS_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)
_KINDS: dict[str, Callable[..., Metric]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Samples:
    """The samples of one scrape, by family.

    Label values come from a store: what is not printable is escaped, and a sample with a value of
    more than ``LABEL_CHARACTERS_MAX`` characters is omitted, as is every sample of a family
    beyond ``SERIES_MAX``.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._omitted: dict[tuple[Node, str], int] = {}

    def add(self, family: Family, node: Node, value: float, *labels: str) -> None:
        """Add a sample of a gauge or a counter."""
        metric = self._metric_of(family, node, labels)
        if metric is not None:
            metric.add_metric(_label_values(family, node, labels), value)  # type: ignore[attr-defined]

    def add_histogram(
        self, family: Family, node: Node, counts: Sequence[int], total: float, *labels: str
    ) -> None:
        """Add a sample of a histogram: the counts of ``BUCKETS_MS`` and of what exceeds them."""
        metric = self._metric_of(family, node, labels)
        if metric is None:
            return
        bounds = [*(f"{float(bound)}" for bound in BUCKETS_MS), "+Inf"]
        sums = [sum(counts[: i + 1]) for i in range(len(counts))]
        buckets = list(zip(bounds, sums, strict=True))
        assert isinstance(metric, HistogramMetricFamily)
        metric.add_metric(_label_values(family, node, labels), buckets, total)

    def metrics(self) -> Iterator[Metric]:
        """Yield the families, and the number of the samples that were omitted."""
        for (node, name), count in [*self._omitted.items()]:
            self.add(OMITTED_SERIES, node, count, name)
        yield from self._metrics.values()

    def _metric_of(self, family: Family, node: Node, labels: tuple[str, ...]) -> Metric | None:
        """Return the family to add a sample to, or None if the sample is omitted."""
        if family.name not in self._metrics:
            kind = _KINDS[family.kind]
            self._metrics[family.name] = kind(family.name, family.help, labels=family.label_names)
        metric = self._metrics[family.name]
        is_long = any(len(label) > LABEL_CHARACTERS_MAX for label in labels)
        if is_long or len(metric.samples) >= SERIES_MAX:
            key = node, family.name
            self._omitted[key] = self._omitted.get(key, 0) + 1
            return None
        return metric


Measure = Callable[[Samples], None]


class SampleCollector(Collector):
    """Calls functions that add samples, at each scrape."""

    def __init__(self, measures: Sequence[Measure]) -> None:
        self._measures = measures

    def collect(self) -> Iterator[Metric]:
        """Yield the families of all functions."""
        samples = Samples()
        for measure in self._measures:
            measure(samples)
        yield from samples.metrics()


def metrics_response(measures: Sequence[Measure]) -> Response:
    """Return the answer to a scrape."""
    return Response(exposition(measures), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def exposition(measures: Sequence[Measure]) -> bytes:
    """Return the text format: the samples of these functions, and those of this process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(SampleCollector(measures))
    return generate_latest(registry)


def _label_values(family: Family, node: Node, labels: tuple[str, ...]) -> list[str]:
    # Lone surrogates cannot be encoded, and NUL ends Prometheus's parser. Backslashes are escaped
    # as well, so that two names never share a series.
    values = (*node.label_values(family), *labels)
    return [printable(value.replace("\\", "\\\\")) for value in values]
