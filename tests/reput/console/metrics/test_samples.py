"""The samples of a scrape: the text format, hostile label values, the limit of series."""

import prometheus_client.parser as text_parser
import pytest

from reput.console.metrics import metric_names, samples
from reput.console.metrics.metric_names import FAMILIES, Node
from reput.console.metrics.samples import BUCKETS_MS, Measure, Samples, exposition

NODE = Node("DefaultCluster", "broker-a")
ALL = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
TIMING = metric_names.TIMING_MESSAGES


def scraped(measure: Measure) -> dict[tuple[str, ...], float]:
    """Return the samples of this program: name and label values after the node's -> value."""
    text = exposition([measure]).decode("utf-8")
    found = {}
    for family in text_parser.text_string_to_metric_families(text):
        for sample in family.samples:
            own = {k: v for k, v in sample.labels.items() if k not in ALL}
            own = {k: v for k, v in own.items() if not k.startswith("storage_")}
            if sample.name.startswith("reput_"):
                found[(sample.name, *own.values())] = sample.value
    return found


def test_a_sample_has_the_labels_of_rocketmqs_exporter() -> None:
    text = exposition([lambda s: s.add(metric_names.DISPATCH_BEHIND_BYTES, NODE, 7)]).decode()
    (line,) = (x for x in text.splitlines() if x.startswith("reput_"))
    assert line == (
        'reput_storage_dispatch_behind_bytes{cluster="DefaultCluster",node_id="broker-a",'
        'node_type="broker",storage_medium="disk",storage_type="local"} 7.0'
    )
    assert "\nprocess_open_fds " in text


@pytest.mark.parametrize(
    ("topic", "shown"),
    [
        ('a"b', 'a"b'),
        ("a\\nb", "a\\\\nb"),  # not the series of the next one
        ("a\nb", "a\\nb"),
        ("nul\0", "nul\\x00"),
        ("lone\udc80", "lone\\udc80"),
        ("主题", "主题"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ('x"} 1\nreput_damage{node_id="', 'x"} 1\\nreput_damage{node_id="'),
    ],
)
def test_a_hostile_name_is_one_label_value(topic: str, shown: str) -> None:
    found = scraped(lambda s: s.add(TIMING, NODE, 3, topic))
    assert {("reput_timing_messages", shown): 3.0} == found


def test_samples_beyond_the_limit_and_long_values_are_omitted_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samples, "SERIES_MAX", 3)

    def measure(s: Samples) -> None:
        s.add(TIMING, NODE, 1, "x" * 513)
        for i in range(5):
            s.add(TIMING, NODE, i, f"T{i}")

    found = scraped(measure)
    expected = {("reput_timing_messages", f"T{i}"): float(i) for i in range(3)}
    expected["reput_omitted_series", "reput_timing_messages"] = 3.0
    assert expected == found


def test_a_histogram_is_cumulative() -> None:
    counts = [1, 2] + [0] * (len(BUCKETS_MS) - 2) + [4]
    labels = ("dispatch", "addBatch")
    made = Samples()
    made.add_histogram(metric_names.BATCH_DURATION, NODE, counts, 99_000, *labels)
    (metric,) = made.metrics()
    buckets = [(s.labels["le"], s.value) for s in metric.samples if "le" in s.labels]
    bounds = [*map(str, map(float, BUCKETS_MS)), "+Inf"]
    expected = [1.0, *([3.0] * (len(BUCKETS_MS) - 1)), 7.0]
    assert buckets == list(zip(bounds, expected, strict=True))
    name = "reput_batch_duration_milliseconds"
    found = {s.name: s.value for s in metric.samples if "le" not in s.labels}
    assert found == {f"{name}_count": 7.0, f"{name}_sum": 99_000.0}


def test_every_metric_has_the_name_of_its_kind_and_a_help() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES) > 25
    for family in FAMILIES:
        assert (family.kind == "counter") == family.name.endswith("_total")
        assert family.name.startswith("reput_")
        assert family.help


def test_families_of_several_brokers_appear_once() -> None:
    other = Node("DefaultCluster", "broker-b")

    def measure(s: Samples) -> None:
        for node in (NODE, other):
            s.add(metric_names.DAMAGE, node, 0)

    text = exposition([measure]).decode()
    assert text.count("# TYPE reput_damage gauge") == 1
    assert text.count("\nreput_damage{") == 2


def test_the_lag_of_a_group_has_rocketmqs_labels() -> None:
    expected = ("cluster", "node_type", "node_id", "topic", "consumer_group", "is_retry")
    assert (*expected, "is_system") == metric_names.CONSUMER_LAG.label_names
