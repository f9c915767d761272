"""Every block of docs/sql.md and every cell of the notebook, executed on real stores."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryManager
from pyspark.sql.streaming.listener import StreamingQueryListener

from store.commitlog.record import NewMessage
from store.config import StoreConfig
from tests.support.bulk_writer import BulkWriter
from tests.support.dispatching import dispatch_all
from tests.support.stores.written import CONF, TEMPLATES, make_store, small_config

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[3] / "docs"
COUNT = 30


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a directory like the documented ``/data``, without ``/data/*/store`` that overlap."""
    store_root = tmp_path / "data"
    for path, name in (("store", "x"), ("a/store", "a"), ("b/store", "b")):
        make_store(store_root / path, COUNT)
        with (store_root / path / "broker.conf").open("a") as conf:
            conf.write(f"brokerName=broker-{name}\n")
    make_store(store_root / "rocketmq" / "store", COUNT)
    with (store_root / "rocketmq" / "store" / "broker.conf").open("a") as conf:
        conf.write("brokerName=broker-r\n")
    with BulkWriter(store_root / "rocketmq" / "store", small_config()) as writer:
        for n in range(20):
            writer.append(NewMessage("OrderTopic", n % 2, b"order", {"KEYS": "order-42 x"}))
    dispatch_all(store_root / "rocketmq" / "store", store_root / "reput", small_config())
    return store_root


@pytest.fixture(autouse=True)
def listeners(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the listeners that the documents add: they print for as long as the session lasts."""
    added: list[StreamingQueryListener] = []
    add = StreamingQueryManager.addListener

    def record(manager: StreamingQueryManager, listener: StreamingQueryListener) -> None:
        added.append(listener)
        add(manager, listener)

    monkeypatch.setattr(StreamingQueryManager, "addListener", record)
    yield
    for listener in added:
        spark.streams.removeListener(listener)


def test_the_columns_are_listed_with_their_types(spark: SparkSession, data: Path) -> None:
    text = (DOCS / "sql.md").read_text("utf-8").split("\n## Columns\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \| ([a-z<>, ]+) \|", text, re.MULTILINE)
    reader = spark.read.format("rocketmq-commitlog")
    schema = reader.load([str(data / "a/store"), str(data / "b/store")]).schema
    own = [(f.name, f.dataType.simpleString().replace(",", ", ")) for f in schema]
    assert listed == own


@pytest.mark.classic("the page starts a classic session")
def test_every_block_of_the_page_runs(spark: SparkSession, data: Path) -> None:
    text = (DOCS / "sql.md").read_text("utf-8").replace("/data/", f"{data}/")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names = {"spark": spark}
    answers: list[int] = []
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, "docs/sql.md", "exec"), names)
        elif kind == "sql":
            answers.append(spark.sql(block).count())
        else:
            answers += _run_statements(spark, block)
    assert [kind for kind, _ in blocks].count("python") >= 5
    # SELECT count(*); topics and minutes; the ten largest bodies; the senders of the key
    assert answers[0] == 1
    assert answers[1] >= 3
    assert answers[2:] == [10, 20]
    orders = names["orders"]
    assert isinstance(orders, DataFrame)
    assert sorted((r.partition, r.offset) for r in orders.collect()) == [
        *((0, n) for n in range(5, 9)),
        *((1, n) for n in range(10)),
    ]


def _run_statements(spark: SparkSession, block: str) -> list[int]:
    """Run the statements of a block, one a line: its table hides no view of the same name."""
    view = spark.table("log")
    spark.catalog.dropTempView("log")
    counts = []
    try:
        for statement in block.strip().splitlines():
            answer = spark.sql(statement)
            if answer.columns:
                counts.append(answer.count())
    finally:
        spark.sql("DROP TABLE IF EXISTS log")
    view.createOrReplaceTempView("log")
    return counts


@pytest.mark.process
def test_every_cell_of_the_notebook_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_orders(tmp_path / "store", small_config())
    monkeypatch.setattr("streaming.spark.session.build_session", lambda *_: spark)
    notebook = json.loads((DOCS / "kafka-view.ipynb").read_text("utf-8"))
    assert (notebook["nbformat"], {cell["cell_type"] for cell in notebook["cells"]}) == (
        4,
        {"code", "markdown"},
    )
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        assert not cell.get("outputs"), "outputs are not stored"
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace("/data/rocketmq", str(tmp_path))
            source = source.replace("/data/checkpoints", str(tmp_path))
            exec(compile(source, "docs/kafka-view.ipynb", "exec"), names)
    orders = names["orders"]
    assert isinstance(orders, DataFrame)
    assert orders.where("price = 2.5").count() == 60
    windows = spark.table("revenue").orderBy("window", "item").collect()
    # 60 orders, one a minute; the last windows are open: the watermark is at 08:49
    assert [(r.orders, r.revenue) for r in windows] == [(5, 12.5)] * 9


def _write_orders(store_root: Path, config: StoreConfig) -> None:
    with BulkWriter(store_root, config) as writer:
        writer.append_many(TEMPLATES, 3)
        for n in range(60):
            order = {"id": n, "item": "tea", "price": 2.5, "time": f"2024-05-01T08:{n:02}:00Z"}
            writer.append(NewMessage("OrderTopic", n % 2, json.dumps(order).encode()))
    (store_root / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in CONF.items()))


def test_the_listener_is_a_listener_of_spark() -> None:
    from reput import BacklogListener

    assert issubclass(BacklogListener, StreamingQueryListener)
