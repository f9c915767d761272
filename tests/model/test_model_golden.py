"""The executable model against the stores of real brokers: every name, every byte."""

import json
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ARCHIVES, Golden, archive_name
from tests.model.dispatch import Built, Content, ModelConfig, dispatch

WHOLE_STORES = {"g4b", "g6b", "g7b", *(f"g{number}" for number in range(1, 11))}
CHUNK_SIZE = 1 << 20


@dataclass(frozen=True)
class GoldenStore:
    """A broker's store, unpacked, and the model's dispatch of its log."""

    golden: Golden
    built: Built

    @property
    def directory(self) -> Path:
        """The expected files of the store."""
        return self.golden.directory

    @property
    def scenario(self) -> dict[str, Any]:
        """How the store was made."""
        return self.golden.scenario

    def expected(self, kind: str) -> dict[str, Path]:
        """Map the files that the broker built from the log, by their path below `kind`."""
        directory = self.golden.expected / kind
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        return {str(path.relative_to(directory)): path for path in files}

    def answers(self) -> dict[str, Any]:
        """Return the live broker's answers."""
        return dict(json.loads((self.directory / "answers.json").read_text("utf-8")))


def read_files(directories: tuple[Path, ...]) -> dict[int, Content]:
    """Map the commit log's files (sparse, up to 1 GiB) by base offset."""
    files: dict[int, Content] = {}
    for path in (path for directory in directories for path in directory.iterdir()):
        with path.open("rb") as file:
            files[int(path.name)] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return files


@pytest.fixture(scope="session")
def golden_store(golden: Golden) -> GoldenStore:
    """Dispatch one store's log with the model."""
    config = ModelConfig.from_conf(golden.store_root / "broker.conf", golden.version)
    files = read_files(golden.config.commit_log_paths(golden.store_root))
    return GoldenStore(golden, dispatch(files, config))


def data_ranges(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the (offset, size) of the pieces of a sparse file that are not holes."""
    with path.open("rb") as file:
        size, at = path.stat().st_size, 0
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:  # No data after this position.
                return
            end = min(os.lseek(file.fileno(), at, os.SEEK_HOLE), at + CHUNK_SIZE)
            yield at, end - at
            at = end


def test_every_archive_exists() -> None:
    names = {archive_name(path) for path in ARCHIVES}
    assert {name for name in names if name.startswith("g")} == WHOLE_STORES
    assert sum(name.startswith("v-") for name in names) == 85


@pytest.mark.parametrize("kind", ["consumequeue", "consumequeue_ext"])
def test_model_equals_the_brokers_queues(golden_store: GoldenStore, kind: str) -> None:
    built = golden_store.built
    actual = built.consume_queue if kind == "consumequeue" else built.consume_queue_ext
    expected = golden_store.expected(kind)
    assert expected.keys() == actual.keys()
    assert [name for name in expected if expected[name].read_bytes() != actual[name]] == []


def test_model_equals_the_brokers_index(golden_store: GoldenStore) -> None:
    expected = list(golden_store.expected("index").values())
    actual = golden_store.built.index_files
    assert [path.stat().st_size for path in expected] == [content.size for content in actual]
    for path, content in zip(expected, actual, strict=True):
        compared: set[int] = set()
        with path.open("rb") as file:
            for at, size in data_ranges(path):
                file.seek(at)
                assert file.read(size) == content.read(at, size), f"{path.name} at {at}"
                compared.update(range(at // 4096, (at + size - 1) // 4096 + 1))
        in_holes = [page for n, page in content.pages.items() if n not in compared]
        assert not any(map(any, in_holes))


def test_model_reads_as_many_records_as_the_broker(golden_store: GoldenStore) -> None:
    answers = golden_store.answers()
    assert answers["records"] == len(golden_store.built.records)
    assert answers["max_phy_offset"] == golden_store.built.end


@pytest.mark.parametrize(
    "golden",
    [path for path in ARCHIVES if archive_name(path) in WHOLE_STORES],
    indirect=True,
    ids=archive_name,
)
def test_model_has_the_tags_codes_the_broker_announced(golden_store: GoldenStore) -> None:
    arrivals = golden_store.answers().get("arrivals")
    if not arrivals:
        pytest.skip("this store has no arrivals")
    expected = [arrival for arrival in arrivals if not arrival[0].startswith("%LMQ%")]
    actual = [
        [r.topic, r.queue_id, r.queue_offset + 1, r.tags_code, r.store_timestamp]
        for r in golden_store.built.records
    ]
    assert expected == actual
