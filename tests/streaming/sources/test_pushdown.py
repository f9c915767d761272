"""Filter push-down and ranges: the rows selected before decoding are those Spark would select."""

import datetime
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests, concat
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from store.commitlog.writer import CommitLogWriter
from store.config import StoreConfig
from store.errors import DamageError
from streaming import CommitLogDataSource
from streaming.sources.message_rows import MessageRows
from streaming.sources.message_source import FORMAT, FilteringReader
from streaming.sources.options import parse_options
from streaming.sources.pushdown import RowFilter
from tests.support.stores.written import CONF, TEMPLATES, corrupt, make_store, small_config

COUNT = 300
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
COMPARE = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}


def scanned(store_root: Path, config: StoreConfig) -> DispatchRequests:
    log = CommitLog(config.commit_log_paths(store_root), config)
    parts = LogPlanner(log, lambda: True).plan(0).ranges
    return concat([s for p in parts for s in Scanner(config).read(p)])  # type: ignore[misc]


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> DispatchRequests:
    store_root = tmp_path_factory.mktemp("store")
    make_store(store_root, COUNT)
    return scanned(store_root, small_config())


def rows(requests: DispatchRequests) -> list[dict[str, object]]:
    """Return the values of each record that Spark's filters see."""
    return [
        {
            "topic": requests.topics[q],
            "queue_id": int(requests.queue_ids[q]),
            "queue_offset": int(requests.queue_offset[r]),
            "commit_log_offset": int(requests.commit_log_offset[r]),
            "size": int(requests.size[r]),
            "store_timestamp": EPOCH
            + datetime.timedelta(milliseconds=int(requests.store_timestamp[r])),
        }
        for r, q in enumerate(requests.queue.tolist())
    ]


def holds(f: Filter, row: dict[str, object]) -> bool:
    """Evaluate a filter as SQL does."""
    if isinstance(f, Not):
        return not holds(f.child, row)
    if isinstance(f, IsNotNull):
        return True
    value = row[f.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(f, In):
        return value in f.value
    return bool(COMPARE[type(f)](value, f.value))  # type: ignore[attr-defined, no-untyped-call]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_mask_selects_exactly_the_rows_that_pass_the_filters(
    requests: DispatchRequests, data: st.DataObject
) -> None:
    all_rows = rows(requests)

    def draw_filter() -> Filter:
        row = data.draw(st.sampled_from(all_rows))
        column = data.draw(st.sampled_from(sorted(row)))
        value = row[column]
        if column == "topic":
            return data.draw(
                st.sampled_from([EqualTo((column,), value), In((column,), ("TopicB", "no"))])
            )
        near = data.draw(st.integers(-1500, 1500))
        if isinstance(value, datetime.datetime):
            value += datetime.timedelta(microseconds=near)
        else:
            assert isinstance(value, int)
            value += data.draw(st.sampled_from([-1, 0, 0, 1]))
        return data.draw(st.sampled_from(list(COMPARE)))((column,), value)

    filters = [draw_filter() for _ in range(data.draw(st.integers(0, 3)))]
    chosen = RowFilter()
    others = [IsNotNull(("keys",)), Not(EqualTo(("topic",), "TopicA"))]
    by_spark = [f for f in filters if f.attribute == ("store_timestamp",)]  # type: ignore[attr-defined]
    assert chosen.add([*filters, IsNotNull(("topic",)), *others]) == [*by_spark, *others]
    wanted = [all(holds(f, row) for f in filters) for row in all_rows]
    assert chosen.mask(requests).tolist() == wanted


def test_values_that_cannot_be_compared_push_nothing_down(requests: DispatchRequests) -> None:
    chosen = RowFilter()
    naive = datetime.datetime(2030, 1, 1)  # noqa: DTZ001 - a time without a zone is none
    chosen.add([GreaterThan(("store_timestamp",), naive), EqualTo(("keys",), "k01")])
    chosen.add([GreaterThan(("size",), 1.5), EqualTo(("a", "size"), 0)])
    assert np.all(chosen.mask(requests))


@pytest.mark.parametrize("begins", ["before the cut", "after the cut"])
@pytest.mark.parametrize("is_filtered", [False, True])
def test_a_file_that_is_truncated_after_planning_is_not_read_as_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, begins: str, is_filtered: bool
) -> None:
    """A filter on the time narrows the range, but not to what is left of the file."""
    make_store(tmp_path, COUNT)
    offsets = scanned(tmp_path, small_config()).commit_log_offset.tolist()
    cut = offsets[100]
    begin = offsets[50 if begins == "before the cut" else 200]
    expected = 50 if begins == "before the cut" else 0
    options = {"path": str(tmp_path), "startingOffsets": f'{{"commit_log_offset": {begin}}}'}

    def reader_of(fail: str) -> FilteringReader:
        parsed = parse_options(options | {"failOnDataLoss": fail}, streaming=False)
        reader = FilteringReader(MessageRows(parsed, ("commit_log_offset",)))
        if is_filtered:
            list(reader.pushFilters([GreaterThan(("store_timestamp",), EPOCH)]))
        return reader

    failing, skipping = reader_of("true"), reader_of("false")
    (part,), (same,) = failing.partitions(), skipping.partitions()
    os.truncate(tmp_path / "commitlog" / f"{0:020d}", cut)
    with pytest.raises(DamageError, match=f"truncated to {cut} bytes"):
        list(failing.read(part))
    assert sum(batch.num_rows for batch in skipping.read(same)) == expected
    assert f"truncated to {cut} bytes" in caplog.text


@pytest.mark.spark
def test_answers_are_the_same_with_and_without_push_down(
    spark: SparkSession, tmp_path: Path
) -> None:
    make_store(tmp_path, COUNT)
    requests = scanned(tmp_path, small_config())
    spark.dataSource.register(CommitLogDataSource)
    when = EPOCH + datetime.timedelta(milliseconds=int(requests.store_timestamp[0]))
    conditions = [
        ("topic = 'TopicB' AND queue_offset BETWEEN 3 AND 7", 5),
        ("topic IN ('TopicA', 'no') AND queue_id = 1", COUNT // 3),
        (f"commit_log_offset < {requests.commit_log_offset[10]}", 10),
        (f"store_timestamp < timestamp'{when.isoformat()}'", 0),
        (f"store_timestamp >= timestamp'{when.isoformat()}'", COUNT),
    ]
    try:
        for enabled in ("true", "false"):
            spark.conf.set(PUSHDOWN, enabled)
            frame = spark.read.format(FORMAT).load(str(tmp_path))
            assert [frame.where(c).count() for c, _ in conditions] == [n for _, n in conditions]
    finally:
        spark.conf.set(PUSHDOWN, "true")


@pytest.mark.spark
def test_a_plan_names_the_accepted_filters_and_spark_evaluates_the_others(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path, COUNT)
    spark.dataSource.register(CommitLogDataSource)
    spark.read.format(FORMAT).load(str(tmp_path)).where("queue_id = 1 AND keys = 'k'").explain(
        "formatted"
    )
    plan = capsys.readouterr().out
    assert "PushedFilters: [IsNotNull(queue_id), EqualTo(queue_id,1)]" in plan
    (condition,) = [line for line in plan.splitlines() if line.startswith("Condition")]
    assert "keys" in condition
    assert "queue_id" not in condition


@pytest.mark.spark
def test_files_outside_the_range_are_not_opened(spark: SparkSession, tmp_path: Path) -> None:
    make_store(tmp_path, 2000)
    spark.dataSource.register(CommitLogDataSource)
    offsets = scanned(tmp_path, small_config()).commit_log_offset
    files = sorted((tmp_path / "commitlog").iterdir())
    assert len(files) > 3
    for path in (files[0], files[-1]):
        path.write_bytes(b"\x55" * path.stat().st_size)  # reading this file fails
    begin, end = int(files[1].name), int(files[-1].name)
    wanted = int(((offsets >= begin) & (offsets < end)).sum())
    options = {
        "startingOffsets": f'{{"commit_log_offset": {begin}}}',
        "endingOffsets": f'{{"commit_log_offset": {end}}}',
    }
    read = spark.read.format(FORMAT)
    assert read.options(**options).load(str(tmp_path)).count() == wanted
    until = {"endingOffsets": options["endingOffsets"]}
    frame = spark.read.format(FORMAT).options(**until).load(str(tmp_path))
    assert frame.where(f"commit_log_offset >= {begin}").count() == wanted


@pytest.mark.spark
def test_filters_on_offset_and_time_narrow_a_read_within_a_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    ticks = iter(range(1_000_000))
    with CommitLogWriter(tmp_path, small_config(), clock=lambda: next(ticks)) as writer:
        offsets = [writer.append(TEMPLATES[0]) for _ in range(100)]
    (tmp_path / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in CONF.items()))
    spark.dataSource.register(CommitLogDataSource)
    frame = spark.read.format(FORMAT).load(str(tmp_path))
    rows = frame.orderBy("commit_log_offset").select("store_timestamp").collect()
    first, last = (rows[n].store_timestamp.astimezone(datetime.UTC) for n in (40, 59))
    low, high = (f"timestamp'{time.isoformat()}'" for time in (first, last))
    conditions = [
        f"commit_log_offset BETWEEN {offsets[40] - 7} AND {offsets[59] + 7}",
        f"store_timestamp BETWEEN {low} AND {high}",
        f"store_timestamp = {low} OR store_timestamp = {high}",
    ]
    assert [frame.where(c).count() for c in conditions] == [20, 20, 2]
    for damaged in (39, 60):  # a flipped bit of a body: reading the record fails
        body = (tmp_path / "commitlog" / f"{0:020d}").read_bytes().index(b"body", offsets[damaged])
        corrupt(tmp_path / "commitlog" / f"{0:020d}", body)
    assert [frame.where(c).count() for c in conditions[:2]] == [20, 20]
    reaching_one_damage = {
        39: f"commit_log_offset BETWEEN {offsets[39]} AND {offsets[59]}",
        60: f"store_timestamp >= {low}",
    }
    for n, c in reaching_one_damage.items():
        with pytest.raises(Exception, match=f"at offset {offsets[n]}: the body does not match"):
            frame.where(c).count()
