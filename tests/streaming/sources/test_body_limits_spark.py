"""Bodies beyond the limit, read through the data source and exported."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from store.errors import BodyTooLargeError
from streaming import CommitLogDataSource
from streaming.sources.message_source import FORMAT
from streaming.spark.errors import to_store_error
from tests.logs.build import Message, build_log, write_log
from tests.support.bombs import BOMBS
from tests.support.exporting import export

pytestmark = pytest.mark.spark

FILE_SIZE = 4 << 20


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Write a plain message and a bomb."""
    make_bomb, flag = BOMBS["zstd"]
    sent = [Message(body=b"plain"), Message(body=make_bomb(), sys_flag=flag, queue_offset=1)]
    write_log(build_log(sent, FILE_SIZE), tmp_path / "store/commitlog")
    (tmp_path / "store/broker.conf").write_text(f"mappedFileSizeCommitLog={FILE_SIZE}\n")
    return tmp_path / "store"


def read(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    return spark.read.format(FORMAT).options(**options).load(str(store))


def test_a_body_beyond_the_limit_fails_the_read_or_is_null(
    spark: SparkSession, store: Path
) -> None:
    spark.dataSource.register(CommitLogDataSource)
    with pytest.raises(Exception, match="decompresses to more than 67108864 bytes") as failed:
        read(spark, store).collect()
    assert isinstance(to_store_error(failed.value), BodyTooLargeError)
    rows = read(spark, store, failOnDataLoss="false").orderBy("queue_offset")
    assert [r.body for r in rows.select("body").collect()] == [b"plain", None]
    slim = read(spark, store, includeBody="false")
    assert slim.count() == 2
    small = read(spark, store, maxBodyBytes="1k")
    with pytest.raises(Exception, match="decompresses to more than 1024 bytes"):
        small.collect()


def test_an_export_names_the_body_that_is_too_large(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    with pytest.raises(BodyTooLargeError, match=r"more than 67108864 bytes; .*--max-body-bytes"):
        export(store, tmp_path / "refused")
    with pytest.raises(BodyTooLargeError, match="more than 4096 bytes"):
        export(store, tmp_path / "small", max_body_bytes=4096)
    export(store, tmp_path / "made", fail_on_data_loss=False)
    rows = spark.read.parquet(str(tmp_path / "made")).orderBy("queue_offset").collect()
    assert [r.body for r in rows] == [b"plain", None]
