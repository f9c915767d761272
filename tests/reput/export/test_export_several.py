"""`reput export` of several stores: a directory for each broker, failures by store."""

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from reput.cli import run
from reput.export.export_record import read_record
from tests.logs.build import Message, build_log, write_log
from tests.support.exporting import CONF, export, files_of, grow, names_in, sent_to
from tests.support.stores.written import corrupt
from tests.support.verify_stores import CONFIG, messages

Ran = tuple[int, str, str]
Reput = Callable[..., Ran]


def write(store_root: Path, sent: list[Message], conf: str = "") -> Path:
    write_log(build_log(sent, CONFIG.mapped_file_size_commit_log), store_root / "commitlog")
    (store_root / "broker.conf").write_text(CONF + conf)
    return store_root


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    """Write three stores of 2, 3 and 4 messages; only the last has topic X."""
    return [
        write(tmp_path / "alpha", sent_to("T", count=2)),
        write(tmp_path / "folder", sent_to("T", count=3), "brokerName=beta\n"),
        write(tmp_path / "gamma", sent_to("T", "X", count=2)),
    ]


@pytest.fixture
def reput(capfd: pytest.CaptureFixture[str]) -> Reput:
    def call(*arguments: object) -> Ran:
        code = run(list(map(str, arguments)))
        return code, *capfd.readouterr()

    return call


def counts_by_broker(to: Path) -> dict[str, int]:
    """Return the number of rows of each broker, as DuckDB reads the directory."""
    files = f"{to}/*/*/*/*.parquet"
    query = "SELECT broker, count(*) FROM read_parquet(?, hive_partitioning=true) GROUP BY broker"
    return dict(duckdb.execute(query, [files]).fetchall())


def test_each_broker_has_the_files_of_its_own_export(
    stores: list[Path], reput: Reput, tmp_path: Path
) -> None:
    code, out, errors = reput("export", *stores, "--to", tmp_path / "to", "--json")
    assert (code, errors) == (0, "")
    results = [json.loads(line) for line in out.splitlines()]
    assert [(r["broker"], r["messages"]) for r in results] == [
        ("alpha", 2),
        ("beta", 3),
        ("gamma", 4),
    ]
    assert counts_by_broker(tmp_path / "to") == {"alpha": 2, "beta": 3, "gamma": 4}
    for store, result in zip(stores, results, strict=True):
        own = tmp_path / f"own-{store.name}"
        export(store, own)
        to = Path(result["to"])
        assert to == tmp_path / "to" / f"broker={result['broker']}"
        assert [p.relative_to(own) for p in files_of(own)] == [
            p.relative_to(to) for p in files_of(to)
        ]
        for path in files_of(own):
            assert pq.read_table(path).equals(pq.read_table(to / path.relative_to(own)))


def test_append_resumes_each_broker(stores: list[Path], reput: Reput, tmp_path: Path) -> None:
    to = tmp_path / "to"
    grown = write(tmp_path / "grown", messages(3))
    assert reput("export", stores[0], grown, "--to", to)[0] == 0
    code, _, errors = reput("export", stores[0], grown, "--to", to)
    assert code == 2
    assert "--append continues the export in it" in errors
    grow(grown, 8)
    code, out, errors = reput(
        "export", stores[0], grown, stores[2], "--to", to, "--append", "--json"
    )
    assert (code, errors) == (0, "")
    assert [json.loads(line)["messages"] for line in out.splitlines()] == [0, 5, 4]
    assert counts_by_broker(to) == {"alpha": 2, "grown": 8, "gamma": 4}


def test_a_damaged_store_is_reported_and_the_others_are_exported(
    stores: list[Path], reput: Reput, tmp_path: Path
) -> None:
    damaged = stores[1] / "commitlog" / f"{0:020d}"
    corrupt(damaged, 4)
    code, _, errors = reput("export", *stores, "--to", tmp_path / "to")
    assert code == 3
    assert f"reput: beta: damaged: {damaged} at offset 0" in errors
    assert names_in(tmp_path / "to") == {"broker=alpha", "broker=gamma"}
    corrupt(damaged, 4)
    assert reput("export", *stores, "--to", tmp_path / "to", "--append")[0] == 0
    assert counts_by_broker(tmp_path / "to") == {"alpha": 2, "beta": 3, "gamma": 4}


def test_a_topic_may_be_in_one_store_only(stores: list[Path], reput: Reput, tmp_path: Path) -> None:
    code, _, errors = reput("export", *stores, "--to", tmp_path / "to", "--topic", "X")
    assert code == 0
    assert "alpha: topic 'X' is not in the log of" in errors
    assert counts_by_broker(tmp_path / "to") == {"gamma": 2}
    code, out, errors = reput("export", *stores, "--to", tmp_path / "none", "--topic", "Y")
    assert (code, out) == (1, "")
    assert "nothing to export" in errors
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("append", [[], ["--append"]])
def test_a_directory_of_something_else_is_refused(
    stores: list[Path], reput: Reput, tmp_path: Path, append: list[str]
) -> None:
    one = tmp_path / "one"
    assert reput("export", stores[0], "--to", one)[0] == 0
    record = read_record(one)
    code, _, errors = reput("export", *stores, "--to", one, *append)
    assert code == 2
    assert f"--to {one}" in errors
    assert read_record(one) == record
    inside = stores[1] / "commitlog" / "to"
    code, _, errors = reput("export", *stores, "--to", inside, *append)
    assert code == 2
    assert "is inside the commit log" in errors
    assert not inside.exists()
