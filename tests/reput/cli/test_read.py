"""``reput get``, ``offset``, ``query``, ``message``: output and exit codes."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from reput.cli import run
from store.config import StoreConfig
from tests.logs.build import Message, build_log, write_log
from tests.support.dispatching import dispatch_all

FILE_SIZE = 16 * 1024
CONFIG = replace(
    StoreConfig(),
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=5,
    max_index_num=1000,
)
START = 1_700_000_000_000  # 2023-11-14T22:13:20Z
BODIES = ["plain text", "Grüße 世界\n", b"\x00\xff\x01", "\x1b[31mred\x1b[0m [bold]"]

Ran = tuple[int, str, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return a store of 100 messages with four kinds of body, and an OUTPUT with its queues."""
    store_root = tmp_path_factory.mktemp("store")
    messages = [
        Message(
            topic="T",
            queue_offset=n,
            body=body if isinstance(body := BODIES[n % 4], bytes) else body.encode(),
            properties=[("KEYS", f"k{n} all"), ("TAGS", "AB"[n % 2]), ("UNIQ_KEY", f"u{n}")],
            store_timestamp=START + 1000 * n,
        )
        for n in range(100)
    ]
    write_log(build_log(messages, FILE_SIZE), store_root / "commitlog")
    (store_root / "broker.conf").write_text(
        f"mappedFileSizeCommitLog={FILE_SIZE}\nmappedFileSizeConsumeQueue=400\n"
        "maxHashSlotNum=5\nmaxIndexNum=1000\n"
    )
    output = tmp_path_factory.mktemp("out")
    dispatch_all(store_root, output, CONFIG)
    return str(store_root), str(output)


@pytest.fixture
def reput(made: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> "Reput":
    return Reput(*made, capfd)


class Reput:
    """Runs commands on the store; `output` None omits the option."""

    def __init__(self, store: str, output: str, capture: pytest.CaptureFixture[str]) -> None:
        self.store = store
        self.output: str | None = output
        self._capture = capture

    def __call__(self, command: str, *options: str) -> Ran:
        output = ["--output", self.output] if self.output else []
        code = run([command, self.store, *options, *output])
        return code, *self._capture.readouterr()


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def table_rows(text: str) -> list[list[str]]:
    """Return the words of each row below the header."""
    return [line.split() for line in text.splitlines() if line.strip()][2:]


QUEUE = ("--topic", "T", "--queue", "0")


def test_get_prints_a_table(reput: Reput, berlin: None) -> None:
    code, out, err = reput("get", *QUEUE, "--offset", "4", "--max", "4")
    assert (code, err) == (0, "")
    rows = table_rows(out)
    assert [row[:2] for row in rows] == [["0", str(n)] for n in range(4, 8)]
    assert "2023-11-14T23:13:24.000+01:00" in rows[0]
    assert [" ".join(row[-2:]) for row in rows[:2]] == ["plain text", r"Grüße 世界\n"]
    assert rows[2][-1] == "0x00ff01"
    assert r"\x1b[31mred\x1b[0m [bold]" in out  # control characters are escaped


def test_get_prints_json_lines_over_several_batches(reput: Reput) -> None:
    code, out, err = reput("get", *QUEUE, "--offset", "10", "--max", "85", "--json")
    found = lines(out)
    assert (code, err) == (0, "")
    assert [m["queue_offset"] for m in found] == list(range(10, 95))
    assert [(m["body_encoding"], m["body"]) for m in found[:3]] == [
        ("hex", "00ff01"),
        ("utf-8", BODIES[3]),
        ("utf-8", "plain text"),
    ]
    assert (
        found[0]
        | {
            "topic": "T",
            "queue_id": 0,
            "tags": "A",
            "keys": "k10 all",
            "uniq_key": "u10",
            "store_timestamp": START + 10_000,
            "born_host": "10.0.0.1:50000",
            "store_host": "10.0.0.2:10911",
        }
        == found[0]
    )
    assert found[0]["properties"] == {"KEYS": "k10 all", "TAGS": "A", "UNIQ_KEY": "u10"}


def test_get_filters_by_tag(reput: Reput) -> None:
    code, out, _ = reput("get", *QUEUE, "--offset", "0", "--tags", "B || C", "--json")
    assert code == 0
    assert [m["queue_offset"] for m in lines(out)] == list(range(1, 64, 2))


@pytest.mark.parametrize(
    ("offset", "expected"),
    [("earliest", [0, 1]), ("-1", [99]), ("-3", [97, 98]), ("-100", [0, 1]), ("-999", [0, 1])],
)
def test_get_counts_from_either_end(reput: Reput, offset: str, expected: list[int]) -> None:
    code, out, _ = reput("get", *QUEUE, "--offset", offset, "--max", "2", "--json")
    assert (code, [m["queue_offset"] for m in lines(out)]) == (0, expected)


@pytest.mark.parametrize("offset", ["newest", "1.5", "", "--1", "９"])
def test_get_refuses_another_offset(reput: Reput, offset: str) -> None:
    code, _, err = reput("get", *QUEUE, f"--offset={offset}")
    assert code == 2
    assert f"--offset {offset!r} is not a number, earliest or latest" in err


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        pytest.param([*QUEUE, "--offset", "100"], "OFFSET_OVERFLOW_ONE", "0 to 99", id="end"),
        pytest.param([*QUEUE, "--offset", "999"], "OFFSET_OVERFLOW_BADLY", "0 to 99", id="far"),
        pytest.param([*QUEUE, "--offset", "latest"], "OFFSET_OVERFLOW_ONE", "0 to 99", id="latest"),
        pytest.param(
            ["--topic", "X", "--queue", "0", "--offset", "-1"],
            "NO_MESSAGE_IN_QUEUE",
            "no topic 'X'",
            id="last",
        ),
        pytest.param(
            [*QUEUE, "--offset", "9", "--tags", "C"], "NO_MATCHED_MESSAGE", "these tags", id="tag"
        ),
        pytest.param(
            ["--topic", "T", "--queue", "7", "--offset", "0"],
            "NO_MESSAGE_IN_QUEUE",
            "it has 0",
            id="queue",
        ),
        pytest.param(
            ["--topic", "X", "--queue", "0", "--offset", "0"],
            "NO_MESSAGE_IN_QUEUE",
            "no topic 'X'",
            id="topic",
        ),
    ],
)
def test_get_reports_why_nothing_was_found(
    reput: Reput, options: list[str], status: str, words: str
) -> None:
    code, out, err = reput("get", *options)
    assert (code, out) == (1, "")
    assert err.startswith(f"{status}: ")
    assert words in err
    code, out, err = reput("get", *options, "--json")
    (found,) = lines(out)
    assert (code, err, found["status"]) == (1, "", status)
    assert words in str(found["reason"])


@pytest.mark.parametrize(
    ("command", "options", "answer"),
    [
        (
            "get",
            [*QUEUE, "--offset", "100"],
            {"status": "OFFSET_OVERFLOW_ONE", "next_begin_offset": 100, "min_offset": 0},
        ),
        (
            "offset",
            ["--topic", "T", "--queue", "7", "--time", "0"],
            {"status": "NO_MESSAGE_IN_QUEUE", "queue_id": 7, "offset": None, "max_offset": 0},
        ),
        (
            "query",
            ["--topic", "T", "--key", "none"],
            {"status": "NOT_FOUND", "topic": "T", "key": "none"},
        ),
        (
            "query",
            ["--topic", "T", "--key", "k5", "--to-time", str(START)],
            {"status": "NOT_FOUND", "topic": "T", "key": "k5"},
        ),
        (
            "message",
            ["--commit-log-offset", "1"],
            {"status": "NOT_FOUND", "commit_log_offset": 1},
        ),
    ],
)
def test_an_empty_answer_is_one_json_object_with_a_status(
    reput: Reput, command: str, options: list[str], answer: dict[str, object]
) -> None:
    code, out, err = reput(command, *options, "--json")
    (found,) = lines(out)
    assert (code, err) == (1, "")
    assert answer | found == found
    assert found["reason"]


def test_offset_finds_a_time(reput: Reput) -> None:
    at = ("--time", "2023-11-14T22:13:24.500Z")
    assert reput("offset", *QUEUE, *at) == (0, "5\n", "")
    assert reput("offset", *QUEUE, *at, "--boundary", "upper") == (0, "4\n", "")
    code, out, err = reput("offset", *QUEUE, "--time", str(START + 10**9))
    assert (code, out) == (0, "100\n")
    assert "queue's end" in err
    code, out, _ = reput("offset", *QUEUE, *at, "--json")
    assert code == 0
    assert lines(out)[0] | {"offset": 5, "max_offset": 100} == lines(out)[0]
    code, out, err = reput("offset", "--topic", "X", "--queue", "0", "--time", "0")
    assert (code, out, err) == (1, "", "there is no topic 'X'\n")


def test_query_finds_keys_unique_keys_and_times(reput: Reput) -> None:
    code, out, err = reput("query", "--topic", "T", "--key", "k42", "--json")
    assert (code, [m["queue_offset"] for m in lines(out)], err) == (0, [42], "")
    _, out, _ = reput("query", "--topic", "T", "--key", "u43", "--json")
    assert [m["queue_offset"] for m in lines(out)] == [43]
    times = ("--from-time", str(START + 5000), "--to-time", "2023-11-14T22:13:27Z")
    _, out, _ = reput("query", "--topic", "T", "--key", "all", *times, "--json")
    assert [m["queue_offset"] for m in lines(out)] == [5, 6, 7]
    one = ("--from-time", str(START + 5000), "--to-time", str(START + 5000))
    _, out, _ = reput("query", "--topic", "T", "--key", "all", *one, "--json")
    assert [m["queue_offset"] for m in lines(out)] == [5]
    code, out, err = reput("query", "--topic", "T", "--key", "all", "--max", "2")
    assert code == 0
    assert [row[1] for row in table_rows(out)] == ["98", "99"]
    assert "--max" in err
    assert reput("query", "--topic", "T", "--key", "none") == (
        1,
        "",
        "no message of topic 'T' with key 'none'\n",
    )


def test_message_shows_one_message_in_full(reput: Reput, berlin: None) -> None:
    _, out, _ = reput("query", "--topic", "T", "--key", "k3", "--json")
    known = lines(out)[0]
    at = ("--commit-log-offset", str(known["commit_log_offset"]))
    code, out, err = reput("message", *at)
    assert (code, err) == (0, "")
    assert f"2023-11-14T23:13:23.000+01:00  ({START + 3000})" in out
    assert "body, 19 bytes, utf-8" in out
    assert r"\x1b[31mred\x1b[0m [bold]" in out
    _, out, _ = reput("message", *at, "--json")
    assert lines(out) == [known]
    assert lines(reput("message", "--id", str(known["msg_id"]), "--json")[1]) == [known]
    inside = str(int(str(known["commit_log_offset"])) + 1)
    code, out, err = reput("message", "--commit-log-offset", inside)
    assert (code, out) == (1, "")
    assert "no record begins there" in err
    other_host = "0A000003" + str(known["msg_id"])[8:]
    code, _, err = reput("message", "--id", other_host)
    assert code == 1
    assert "10.0.0.3:10911" in err


@pytest.mark.parametrize("number", range(4))
def test_message_writes_a_body_unchanged(reput: Reput, tmp_path: Path, number: int) -> None:
    _, out, _ = reput("query", "--topic", "T", "--key", f"k{number}", "--json")
    at = ("--commit-log-offset", str(lines(out)[0]["commit_log_offset"]))
    code, out, err = reput("message", *at, "--json", "--body-to", str(tmp_path / "body"))
    assert (code, err, lines(out)[0]["queue_offset"]) == (0, "", number)
    body = BODIES[number]
    expected = body if isinstance(body, bytes) else body.encode()
    assert (tmp_path / "body").read_bytes() == expected


def test_message_never_overwrites_a_file(
    reput: Reput, made: tuple[str, str], tmp_path: Path
) -> None:
    log = Path(made[0]) / "commitlog" / ("0" * 20)
    before = log.read_bytes()
    code, out, err = reput("message", "--commit-log-offset", "0", "--body-to", str(log))
    assert (code, out) == (2, "")
    assert "--body-to" in err
    assert log.read_bytes() == before
    none = str(tmp_path / "none" / "body")
    code, _, err = reput("message", "--commit-log-offset", "0", "--body-to", none)
    assert (code, none in err) == (6, True)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("query", ["--topic", "T"]),
        ("query", ["--topic", "T", "--key", "a", "--tag", "b"]),
        ("query", ["--topic", "T", "--tag", "b"]),
        ("query", ["--topic", "T", "--key", "a", "--from-time", "9", "--to-time", "8"]),
        ("message", []),
        ("message", ["--id", "xyz"]),
        ("offset", [*QUEUE, "--time", "yesterday"]),
        ("get", [*QUEUE, "--offset", "0", "--broker-version", "4.8"]),
        ("get", [*QUEUE, "--offset", "0", "--broker-version", "7.0"]),
        ("get", [*QUEUE, "--offset", "0", "--tags", "||"]),
    ],
)
def test_usage_errors_are_one_line(reput: Reput, command: str, options: list[str]) -> None:
    code, out, err = reput(command, *options)
    assert (code, out) == (2, "")
    assert err.startswith("reput: ")
    assert err.count("\n") == 1


def test_options_that_are_missing_or_not_numbers_are_usage_errors(reput: Reput) -> None:
    assert reput("get", "--topic", "T")[0] == 2
    assert reput("get", *QUEUE, "--offset", "x")[0] == 2
    assert reput("get", *QUEUE, "--offset", "0", "--max", "0")[0] == 2
    assert reput("nothing")[0] == 2


def test_damage_exits_with_3_and_one_line(
    made: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store_root, output = Path(made[0]), made[1]
    log = tmp_path / "commitlog"
    log.mkdir()
    for file in (store_root / "commitlog").iterdir():
        data = bytearray(file.read_bytes())
        data[100] ^= 0xFF
        (log / file.name).write_bytes(data)
    (tmp_path / "broker.conf").write_bytes((store_root / "broker.conf").read_bytes())
    code = run(["get", str(tmp_path), "--output", output, *QUEUE, "--offset", "0"])
    out, err = capfd.readouterr()
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert f"{log / ('0' * 20)} at offset 0" in err


def test_other_errors_have_their_codes(reput: Reput, tmp_path: Path) -> None:
    assert reput("get", *QUEUE, "--offset", "0", "--broker-conf", "/none/such")[0] == 6
    reput.store = str(tmp_path / "none")
    assert reput("get", *QUEUE, "--offset", "0")[0] == 2
    (tmp_path / "rocks/consumequeue").mkdir(parents=True)
    (tmp_path / "rocks/consumequeue/CURRENT").touch()
    (tmp_path / "rocks/commitlog").mkdir()
    (tmp_path / "rocks/commitlog" / f"{0:020d}").write_bytes(bytes(16384))
    reput.store, reput.output = str(tmp_path / "rocks"), None
    assert reput("get", *QUEUE, "--offset", "0")[0] == 5


def test_assumed_settings_are_reported_if_nothing_is_found_in_a_brokers_files(
    made: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for directory in ("consumequeue", "index"):
        (tmp_path / directory).symlink_to(Path(made[1]) / directory)
    command = ["offset", made[0], "--output", str(tmp_path), "--time", "0", "--topic", "T"]
    assert run([*command, "--queue", "0"]) == 0
    assert capfd.readouterr() == ("0\n", "")
    assert run([*command, "--queue", "7"]) == 1
    out, err = capfd.readouterr()
    reason, assumed = err.splitlines()
    assert (out, reason) == ("", "topic 'T' has no queue 7; it has 0")
    assert assumed.startswith("assuming RocketMQ 5.3.3, commit log files of 16,384 bytes")


def test_reading_loads_no_pyspark_and_prints_nothing_else(made: tuple[str, str]) -> None:
    code = f"""
import sys
from reput.cli import run
assert run(["--help"]) == 0
assert run(["topics", {made[0]!r}, "--output", {made[1]!r}, "--json"]) == 0
assert run(["get", {made[0]!r}, "--output", {made[1]!r}, *{QUEUE!r}, "--offset", "0"]) == 0
print("loaded:", [m for m in ("pyspark", "py4j", "kafka") if m in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.endswith("loaded: []\n")
    assert ran.stderr == ""
