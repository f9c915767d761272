"""Roots and checkpoints made before 0.2 open and resume (``tests/fixtures/before_0_2/README.md``).

Only commands and public functions touch them, so that the test holds for later releases as it is.
"""

import json
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from store.config import load_config
from streaming import CommitLogDataSource, start_dispatch
from streaming.cli import run
from tests.support.dispatching import assert_same_store, dispatch_all

FIXTURES = Path(__file__).parents[2] / "fixtures" / "before_0_2"
MANIFEST = json.loads((FIXTURES / "manifest.json").read_text("utf-8"))
ROOTS = {name: f for name, f in MANIFEST["fixtures"].items() if "resume" in f}
KILLED_IN_A_BATCH = [name for name, f in ROOTS.items() if "recovers_to" in f]


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("before_0_2")
    subprocess.run(["tar", "-xJf", FIXTURES / "roots.tar.xz", "-C", directory], check=True)
    for name in {f["golden"] for f in MANIFEST["fixtures"].values()}:
        archive = FIXTURES.parents[1] / "golden" / f"{name}.tar.xz"
        subprocess.run(["tar", "-xJf", archive, "-C", directory / name], check=True)
    return directory


class Place:
    """A store and a root, copied to the test's directory."""

    def __init__(self, unpacked: Path, name: str, directory: Path) -> None:
        golden, _, kind = name.partition("/")
        source = unpacked / golden / golden
        rebuilt = source / "expected_rebuilt"
        self.expected = rebuilt if rebuilt.is_dir() else source / "expected"
        self.store = directory / golden / "store"
        shutil.copytree(source / "input", self.store)
        self.root = directory / golden / kind
        # cp, because modification times must be kept to the nanosecond.
        subprocess.run(["cp", "-a", unpacked / golden / kind, self.root], check=True)
        if kind == "in-place":
            shutil.copytree(self.store / "commitlog", self.root / "commitlog")
            self.store = self.root
        for path in self.root.rglob("*"):
            if path.is_file() and "reput" in path.relative_to(self.root).parts:
                relocate(path, str(directory))

    def reput(self, command: str, *arguments: object) -> int:
        """Run a command on the root."""
        return run([command, str(self.store), "--output", str(self.root), *map(str, arguments)])

    def finish(self) -> None:
        """Dispatch the rest of the log, and compare."""
        config = load_config(self.store, self.store / "broker.conf", "5.3.3")
        dispatch_all(self.store, self.root, config)
        self.check()

    def check(self) -> None:
        """Compare with a broker's files, and run ``verify``."""
        assert_same_store(self.root, self.expected)
        assert self.reput("verify", "--json") == 0
        left = {path.name for path in (self.root / "reput").iterdir()}
        assert left.isdisjoint({"swap", "rebuild", "bulk"})


def relocate(path: Path, directory: str) -> None:
    """Rewrite a state file as if it had been written here; skip others."""
    line, _, checksum = path.read_bytes().partition(b"\n")
    if checksum.strip() != b"%08x" % zlib.crc32(line):
        return
    line = line.decode().replace(MANIFEST["base"], directory).encode()
    path.write_bytes(line + b"\n%08x\n" % zlib.crc32(line))


@pytest.fixture
def place(unpacked: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return Place(unpacked, request.param, tmp_path)


def objects(text: str) -> Iterator[dict[str, Any]]:
    """Return the objects that a command printed."""
    yield from map(json.loads, text.splitlines())


@pytest.mark.parametrize("place", ROOTS, indirect=True)
def test_a_root_made_before_0_2_resumes(place: Place, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["place"]
    for command, *arguments in ROOTS[name]["resume"]:
        assert place.reput(command, *arguments) == 0
    place.finish()


@pytest.mark.parametrize("place", KILLED_IN_A_BATCH, indirect=True)
def test_a_batch_begun_before_0_2_is_rolled_back_to_its_start(
    place: Place, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    name = request.node.callspec.params["place"]
    assert place.reput("recover", "--json") == 0
    events = list(objects(capfd.readouterr().out))
    recovered = [event["to_offset"] for event in events if event["event"] == "recovered"]
    assert recovered == [ROOTS[name]["recovers_to"]]
    assert events[-1]["reput_from_offset"] == ROOTS[name]["recovers_to"]


@pytest.mark.parametrize("place", ["g10/clean", "v-lmq-ext-5.3.3/clean"], indirect=True)
def test_reads_of_a_root_made_before_0_2(place: Place) -> None:
    for command in ("status", "topics", "verify"):
        assert place.reput(command, "--json") == 0


@pytest.mark.spark
@pytest.mark.parametrize("place", ["g10/part", "g10/batch-2"], indirect=True)
def test_a_dispatch_resumes_beside_an_epoch_made_before_0_2(
    spark: SparkSession, place: Place
) -> None:
    query = start_dispatch(spark, place.store, place.root, available_now=True)
    query.awaitTermination()
    query.stop()
    place.check()
    assert len(list((place.root / "reput" / "spark").iterdir())) == 1


@pytest.mark.spark
@pytest.mark.parametrize("place", ["g10/stream-committed", "g10/stream-planned"], indirect=True)
def test_a_stream_resumes_from_a_checkpoint_made_before_0_2(
    spark: SparkSession, place: Place, request: pytest.FixtureRequest
) -> None:
    known = MANIFEST["fixtures"][request.node.callspec.params["place"]]
    spark.dataSource.register(CommitLogDataSource)
    log = spark.read.format("rocketmq-commitlog").load(str(place.store))
    every = sorted(row.commit_log_offset for row in log.select("commit_log_offset").collect())
    rows: list[int] = []

    def collect(batch: DataFrame, _number: int) -> None:
        rows.extend(row.commit_log_offset for row in batch.collect())

    query = (
        spark.readStream.format("rocketmq-commitlog")
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", "60k")
        .schema("commit_log_offset BIGINT")
        .load(str(place.store))
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(place.root))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(rows) == [offset for offset in every if offset >= known["committed"]]
    assert len(every) - len(rows) == known["rows"]
