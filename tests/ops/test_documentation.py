"""The table of metrics in docs/operations.md names what is exported."""

import re

from streaming.web.metrics.families import FAMILIES
from tests.support.ops import OPS

TEXT = (OPS.parent / "docs" / "operations.md").read_text("utf-8")
ROW = re.compile(r"^\| `(reput_\w+)` \| (\w+) \|([^|]*)\| ([DMC ]+) \| ([^|]+) \|$", re.MULTILINE)


def test_every_metric_is_documented_with_its_type_and_labels() -> None:
    rows = {name: (kind, labels.strip()) for name, kind, labels, _, _ in ROW.findall(TEXT)}
    expected = {}
    for family in FAMILIES:
        labels = ["S"] if family.is_storage else []
        labels += [f"`{label}`" for label in family.labels]
        expected[family.name] = family.kind, ", ".join(labels)
    assert expected == rows
