"""A comparison that a real Spark query feeds has the same result as one that threads feed."""

from dataclasses import asdict
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from store.config import StoreConfig
from store.errors import DamageError
from streaming.queries.spark_feed import spark_feed
from streaming.queries.verify import Verification, verify
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.support.cases import first_cases
from tests.support.dispatching import dispatch_all, tree
from tests.support.verify_stores import CONFIG, IN_A_BODY, QUEUE, flip, make, messages, write_store

pytestmark = pytest.mark.spark

SHOWN = [path for path in ARCHIVES if archive_name(path) in ("g1", "g5", "g10")][::-1]


def both(
    spark: SparkSession, store_root: Path, output: Path, config: StoreConfig
) -> tuple[Verification, Verification]:
    """Verify by threads and by Spark."""
    by_spark = verify(store_root, output, config, feed=spark_feed(spark, store_root, config))
    return verify(store_root, output, config), by_spark


@pytest.mark.parametrize("golden", first_cases(SHOWN), ids=archive_name, indirect=True)
def test_a_real_brokers_files_and_ours_compare_alike(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    dispatch_all(golden.store_root, tmp_path, golden.config)
    before = tree(tmp_path)
    by_threads, by_spark = both(spark, golden.store_root, tmp_path, golden.config)
    assert asdict(by_threads) == asdict(by_spark)
    assert by_spark.is_equal
    assert before == tree(tmp_path)
    by_threads, by_spark = both(spark, golden.store_root, golden.expected, golden.config)
    assert asdict(by_threads) == asdict(by_spark)


def test_the_first_difference_is_named(spark: SparkSession, tmp_path: Path) -> None:
    store_root, output = make(tmp_path)
    flip(output / QUEUE / f"{100:020d}", 45)
    by_threads, by_spark = both(spark, store_root, output, CONFIG)
    assert asdict(by_threads) == asdict(by_spark)
    assert len(by_spark.differences) == 1


def test_damage_ends_a_verification_with_its_error(spark: SparkSession, tmp_path: Path) -> None:
    store_root, output = make(tmp_path, count=40)
    flip(store_root / "commitlog" / f"{0:020d}", 1000)
    feeds = (None, spark_feed(spark, store_root, CONFIG))
    errors = []
    for feed in feeds:
        with pytest.raises(DamageError) as caught:
            verify(store_root, output, CONFIG, feed=feed)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_ranges_that_a_dispatch_skipped_are_not_compared(
    spark: SparkSession, tmp_path: Path
) -> None:
    store_root = write_store(tmp_path, messages(40))
    flip(store_root / "commitlog" / f"{0:020d}", IN_A_BODY)
    progress = dispatch_all(store_root, tmp_path / "output", CONFIG, fail_on_data_loss=False)
    assert len(progress.lost) == 1
    by_threads, by_spark = both(spark, store_root, tmp_path / "output", CONFIG)
    assert asdict(by_threads) == asdict(by_spark)
    assert by_spark.is_equal
    assert by_spark.lost == progress.lost
