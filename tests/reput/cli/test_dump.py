"""``reput dump``: output and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from reput.cli import run
from store.config import StoreConfig
from tests.logs.build import Message, build_log, write_log
from tests.support.dispatching import dispatch_all

FILE_SIZE = 2048
CONF = (
    f"mappedFileSizeCommitLog={FILE_SIZE}\nmappedFileSizeConsumeQueue=200\n"
    "maxHashSlotNum=3\nmaxIndexNum=100\n"
)
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=3,
    max_index_num=100,
)
START = 1_700_000_000_000
BODIES = [b"text", b"\x00\xff", "Grüße \x1b[31m".encode()]


@pytest.fixture
def store_root(tmp_path: Path) -> Path:
    """Write a store of a few messages, with its queues and index."""
    messages = [
        Message(
            topic="T",
            queue_offset=n,
            body=BODIES[n % 3],
            properties=[("KEYS", f"k{n}"), ("TAGS", "A")],
            store_timestamp=START + 1000 * n,
        )
        for n in range(6)
    ]
    write_log(build_log(messages, FILE_SIZE), tmp_path / "commitlog")
    (tmp_path / "broker.conf").write_text(CONF)
    dispatch_all(tmp_path, tmp_path, CONFIG)
    return tmp_path


def dump(
    path: Path, capture: pytest.CaptureFixture[str], *options: str
) -> tuple[int, list[dict[str, Any]], str]:
    code = run(["dump", str(path), "--json", *options])
    out, err = capture.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def flip_magic(log: Path, record: int) -> tuple[int, int]:
    """Damage a record; return where it begins and ends."""
    data = bytearray(log.read_bytes())
    at = 0
    for _ in range(record):
        at += int.from_bytes(data[at : at + 4], "big")
    data[at + 4] ^= 0xFF
    log.write_bytes(data)
    return at, at + int.from_bytes(data[at : at + 4], "big")


def test_json_has_the_file_its_meanings_and_one_line_per_record(
    store_root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = store_root / "commitlog" / ("0" * 20)
    code, lines, err = dump(log, capfd)
    assert (code, err) == (0, "")
    head, *records, end = lines
    assert (head["row"], head["kind"], head["base"], head["size"]) == (
        "file", "commitlog", 0, FILE_SIZE,
    )  # fmt: skip
    assert "queue_offset" in head["meanings"]["record"]
    assert [(r["row"], r["queue_offset"]) for r in records] == [("record", n) for n in range(6)]
    assert [(r["body_encoding"], r["body"]) for r in records[:3]] == [
        ("utf-8", "text"),
        ("hex", "00ff"),
        ("utf-8", "Grüße \x1b[31m"),
    ]
    assert (end["row"], end["at"]) == ("end", records[-1]["at"] + records[-1]["size"])


def test_a_table_has_meanings_times_and_bodies(
    store_root: Path, capfd: pytest.CaptureFixture[str], berlin: None
) -> None:
    assert run(["dump", str(store_root / "commitlog" / ("0" * 20))]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "queue_offset       the message's own queue offset" in out
    assert "with --json also: magic, body_crc" in out
    rows = [line for line in out.splitlines() if "2023-11-14T23:13:2" in line]
    assert len(rows) == 6
    assert rows[0].split() == [
        "0", "111", "0", "0", "0", "2023-11-14T23:13:20.000+01:00", "T", "A", "k0", "text",
    ]  # fmt: skip
    assert rows[1].split()[-1] == "0x00ff"
    assert r"Grüße \x1b[31m" in rows[2]
    assert "zeros: nothing has been written from here on" in out


@pytest.mark.parametrize("as_json", [True, False])
def test_it_continues_past_damage_and_exits_with_3(
    store_root: Path, capfd: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    log = store_root / "commitlog" / ("0" * 20)
    at, end = flip_magic(log, 2)
    if as_json:
        code, lines, err = dump(log, capfd)
        assert [line["queue_offset"] for line in lines if line["row"] == "record"] == [
            0,
            1,
            3,
            4,
            5,
        ]
        (damage,) = (line for line in lines if line["row"] == "damage")
        assert damage == {
            "row": "damage",
            "at": at,
            "path": str(log),
            "offset": at,
            "reason": "no record starts here (bad magic)",
            "next_at": end,
        }
    else:
        code = run(["dump", str(log)])
        out, err = capfd.readouterr()
        assert f"damaged: {log} at {at} (offset {at}): no record starts here (bad magic)" in out
        assert f"the next readable one begins at {end}" in out
        assert out.index("k1") < out.index("damaged") < out.index("k3")
    assert code == 3
    assert err == f"reput: damaged: {log} in 1 place, listed above\n"


def test_limit_reports_where_to_continue(
    store_root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = store_root / "commitlog" / ("0" * 20)
    at, end = flip_magic(log, 3)
    code, lines, err = dump(log, capfd, "--limit", "3")
    assert code == 0  # nothing shown is damaged
    assert [line["row"] for line in lines] == ["file", "record", "record", "record"]
    assert err == f"3 rows are shown (--limit); what follows begins at {at} (--at)\n"
    code, lines, _ = dump(log, capfd, "--at", str(end))
    assert code == 0
    assert [line.get("queue_offset") for line in lines] == [None, 4, 5, None]
    code, lines, err = dump(log, capfd, "--at", str(end), "--limit", "2")
    assert (code, len(lines), err) == (0, 4, "")
    index = min((store_root / "index").iterdir())
    code, lines, err = dump(index, capfd, "--limit", "2")
    rows = [line["row"] for line in lines]
    assert (code, rows) == (0, ["file", "header", "slot", "slot", "entry", "entry"])
    assert err.count("--limit") == 2


def test_each_kind_of_file_is_shown_as_a_table(
    store_root: Path, capfd: pytest.CaptureFixture[str], berlin: None
) -> None:
    assert run(["dump", str(store_root / "checkpoint")]) == 0
    out = capfd.readouterr().out
    last = f"{START + 5000} (2023-11-14T23:13:25.000+01:00)"
    assert ["8", "logics_msg_timestamp", *last.split()] in [
        line.split()[:4] for line in out.splitlines()
    ]
    assert run(["dump", str(min((store_root / "consumequeue/T/0").iterdir()))]) == 0
    out = capfd.readouterr().out
    assert ["20", "1", "111", "109", "65"] in [line.split() for line in out.splitlines()]
    assert run(["dump", str(min((store_root / "index").iterdir()))]) == 0
    out = capfd.readouterr().out
    assert [line.strip() for line in out.splitlines()].count("entry") == 2  # meanings, table
    assert out.count("2023-11-14T23:13:2") == 8  # two in the header, six entries


def test_usage_and_other_errors_have_their_codes(
    store_root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    unknown = tmp_path / "unknown"
    unknown.write_bytes(bytes(100))
    assert dump(unknown, capfd)[0] == 2
    assert dump(unknown, capfd, "--kind", "consumequeue")[0] == 0
    assert dump(unknown, capfd, "--kind", "nothing")[0] == 2
    assert dump(store_root, capfd)[0] == 2
    assert dump(store_root / "none", capfd)[0] == 6
    assert dump(store_root / "checkpoint", capfd, "--at", "4096")[0] == 2
