"""Small files are read whole: only regular files of bounded size, parsed in linear time."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.cli import run
from reput.cli.columns import Column
from reput.cli.tables import print_table
from store.broker_files import parse_fastjson, read_consumer_offsets, read_topic_configs
from store.config import load_config
from store.errors import ConfigError, StoreIOError
from store.index.file_parts import read_slots
from store.io.file_system import read_small_file
from store.io.mapped_file import MappedFile, data_pieces
from streaming.kafka.client_options import read_properties
from tests.logs.build import Message, build_log, write_log


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.mkdir()


def huge(path: Path) -> None:
    with path.open("wb") as f:
        f.truncate(1 << 40)


READS: dict[str, Callable[[Path], object]] = {
    "config/topics.json": read_topic_configs,
    "config/consumerOffset.json": read_consumer_offsets,
    "broker.conf": load_config,
    "kafka.properties": lambda root: read_properties(root / "kafka.properties", ()),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (fifo, "it is not a regular file"),
        (zeros, "it is not a regular file"),
        (directory, "Is a directory"),
        (huge, "it is larger than [0-9]+ bytes"),
    ],
)
def test_only_regular_files_of_bounded_size_are_read(
    tmp_path: Path, name: str, make: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    make(path)
    with pytest.raises(StoreIOError, match=f"cannot read {path}: {reason}$"):
        READS[name](tmp_path)


def test_a_link_to_a_regular_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "..data").write_bytes(b"x" * 3_000_000)
    (tmp_path / "link").symlink_to("..data")
    assert read_small_file(tmp_path / "link") == b"x" * 3_000_000
    assert read_small_file(tmp_path / "link", 3_000_000) == b"x" * 3_000_000
    with pytest.raises(OSError, match="larger than 2999999 bytes"):
        read_small_file(tmp_path / "link", 2_999_999)


def test_dump_refuses_anything_but_a_regular_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        assert run(["dump", str(path)]) == 2
        assert capsys.readouterr().err == f"reput: {path} is not a regular file\n"


HOSTILE = [
    '{"a":"' + '\\"' * 60_000,
    '"' * 120_000,
    '{"a":"' + "\\" * 119_999,
    "{" * 120_000,
    "{ " * 60_000,
    "{" + " " * 120_000,
    "{" + "1" * 120_000,
    "{1 " * 40_000,
    "{1" + " " * 120_000,
    "{-" * 60_000,
    '{"' + "\\\n" * 60_000,
    "[" * 120_000,
    '{"a":' * 24_000,
    "1" * 120_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_refused_in_linear_time(text: str) -> None:
    """In quadratic time, parsing these megabytes would take hours."""
    with pytest.raises((ValueError, RecursionError)):
        parse_fastjson(text * 20)


def test_many_consumer_offsets_are_read_and_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    count = 20_000
    table = {f"T{n}@G": {"0": n, "1": n} for n in range(count // 2)}
    text = json.dumps({"offsetTable": table}).replace('"0":', "0:").replace('"1":', "1:")
    write_log(build_log([Message()], 4096), tmp_path / "commitlog")
    (tmp_path / "broker.conf").write_text("mappedFileSizeCommitLog=4096\n")
    (tmp_path / "consumequeue").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "config/consumerOffset.json").write_text(text)
    content = read_consumer_offsets(tmp_path).content
    assert content is not None
    assert len(content) == count
    assert run(["topics", str(tmp_path)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert sum(line.startswith("G ") for line in lines) == count


def test_a_long_table_is_as_wide_as_its_cells(capfd: pytest.CaptureFixture[str]) -> None:
    rows = [[str(n), "漢字" if n == 7 else "ab", "x" * 70] for n in range(3000)]
    columns = [Column("n", is_right=True), Column("name"), Column("long")]
    print_table(columns, rows, "title")
    title, head, line, *cells = capfd.readouterr().out.split("\n")[1:-1]
    assert (title, head, line) == ("title", "   n  name  long", f"────  ────  {'─' * 60}")
    assert cells[7] == f"   7  漢字  {'x' * 59}…"
    assert cells[2999] == f"2999  ab    {'x' * 59}…"
    assert len(cells) == 3000


def test_a_config_file_that_is_not_a_file_is_a_config_error_in_the_command(tmp_path: Path) -> None:
    fifo(tmp_path / "fifo")
    write_log(build_log([Message()], 4096), tmp_path / "commitlog")
    (tmp_path / "broker.conf").write_text("mappedFileSizeCommitLog=4096\n")
    assert run(["status", str(tmp_path), "--output", str(tmp_path / "o")]) == 2
    (tmp_path / "o").mkdir()
    conf = ["--broker-conf", str(tmp_path / "fifo")]
    assert run(["get", str(tmp_path), "--topic", "T", "--queue", "0", "--offset", "0", *conf]) == 6
    (tmp_path / "bad.conf").write_text("a=\\u12")
    with pytest.raises(ConfigError, match="is not a Java properties file"):
        load_config(tmp_path, tmp_path / "bad.conf")


OPENS: dict[str, Callable[[Path], object]] = {
    "map": lambda path: MappedFile(path, 0, 100).map(),
    "map of a known file": lambda path: MappedFile(path, 0, 100, inode=1).map(),
    "read_at": lambda path: MappedFile(path, 0, 100).read_at(0, 10),
    "data_end": lambda path: MappedFile(path, 0, 100).data_end(),
    "data_pieces": lambda path: list(data_pieces(path, 0, 100)),
    "read_slots": lambda path: read_slots(path, load_config(Path("none"))),
}


@pytest.mark.parametrize("kind", OPENS)
@pytest.mark.parametrize("make", [fifo, zeros])
def test_a_pipe_that_replaces_a_listed_file_does_not_block(
    tmp_path: Path, kind: str, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "00000000000000000000"
    make(path)
    with pytest.raises(StoreIOError, match="it is not a regular file"):
        OPENS[kind](path)
