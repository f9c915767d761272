"""Reads of messages with decompression bombs: memory is bounded, and the limit is reported."""

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from reput.cli import run
from store import MessageStore
from store.arrow.batches import BodyLimits
from store.commitlog.message import BodyLimit
from store.config import StoreConfig
from store.errors import BodyTooLargeError
from store.layout import SYS_COMPRESSED
from store.reads import matches
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch
from tests.logs.build import Message, build_log, write_log
from tests.support.bombs import BOMBS
from tests.support.dispatching import dispatch_all

FILE_SIZE = 32 << 20
MEGABYTE = 1 << 20
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=5,
    max_index_num=100,
)
CONF = f"""mappedFileSizeCommitLog={FILE_SIZE}
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=5
maxIndexNum=100
"""
QUEUE = ("--topic", "T", "--queue", "0")
HAS_MORE = f"has more than {64 * MEGABYTE} bytes"
LIMIT = f"decompresses to more than {64 * MEGABYTE} bytes"


def make(store_root: Path, bodies: list[tuple[bytes, int]]) -> Path:
    """Write a store with these bodies and system flags, dispatched into itself."""
    messages = [
        Message(topic="T", queue_offset=n, body=body, sys_flag=flag, properties=[("KEYS", "k")])
        for n, (body, flag) in enumerate(bodies)
    ]
    write_log(build_log(messages, FILE_SIZE), store_root / "commitlog")
    (store_root / "broker.conf").write_text(CONF)
    dispatch_all(store_root, store_root, CONFIG)
    return store_root


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a plain message, then bombs of every algorithm."""
    packed = [(make_bomb(), flag) for make_bomb, flag in BOMBS.values()]
    return make(tmp_path_factory.mktemp("bombs"), [(b"plain", 0), *packed, packed[2], packed[2]])


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write forty bodies of a megabyte each."""
    body = zlib.compress(b"x" * MEGABYTE)
    return make(tmp_path_factory.mktemp("packed"), [(body, SYS_COMPRESSED)] * 40)


def reput(*arguments: object) -> tuple[int, str, float]:
    """Run a command in its own process; return exit code, standard output, peak memory in MB."""
    program = """
import resource, sys
from reput.cli import run
code = run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=sys.stderr)
sys.exit(code)
"""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, float(done.stderr.splitlines()[-1])


def test_tables_decompress_only_what_they_show(bombs: Path, packed: Path) -> None:
    for command in (["get", *QUEUE, "--offset", "0"], ["query", "--topic", "T", "--key", "k"]):
        _, _, base = reput(command[0], packed, *command[1:])
        code, out, peak = reput(command[0], bombs, *command[1:])
        assert code == 0
        assert out.count("A" * 59 + "…") == 5
        assert peak - base < 64


def test_dump_decompresses_only_what_it_shows(bombs: Path, packed: Path) -> None:
    name = f"commitlog/{0:020d}"
    _, _, base = reput("dump", packed / name, "--limit", "6")
    code, out, peak = reput("dump", bombs / name, "--limit", "6")
    assert (code, out.count("A" * 59 + "…")) == (0, 5)
    assert peak - base < 64


def test_json_marks_bodies_that_are_too_large(bombs: Path, packed: Path) -> None:
    for command in (["get", *QUEUE, "--offset", "0"], ["query", "--topic", "T", "--key", "k"]):
        _, _, base = reput(command[0], packed, *command[1:], "--json")
        code, out, peak = reput(command[0], bombs, *command[1:], "--json")
        plain, *others = map(json.loads, out.splitlines())
        assert (code, plain["body"], "body_error" in plain) == (0, "plain", False)
        assert len(others) == 5
        for row in others:
            assert (row["body"], row["body_encoding"]) == (None, None)
            assert f"at commit log offset {row['commit_log_offset']} {LIMIT}" in row["body_error"]
            assert "--max-body-bytes" in row["body_error"]
        assert peak - base < 300


def test_dump_as_json_marks_bodies_that_are_too_large(bombs: Path) -> None:
    code, out, _ = reput("dump", bombs / f"commitlog/{0:020d}", "--limit", "6", "--json")
    rows = [json.loads(line) for line in out.splitlines()][1:7]
    assert (code, rows[0]["body"]) == (0, "plain")
    assert all(LIMIT in row["body_error"] and row["body"] is None for row in rows[1:])


@pytest.mark.parametrize("order", [[], ["--newest-first"]])
def test_a_search_lists_bodies_beyond_the_limit_and_finds_what_is_beside_them(
    bombs: Path, capsys: pytest.CaptureFixture[str], order: list[str]
) -> None:
    assert run(["search", str(bombs), "--body", "plain", "--json", *order]) == 3
    out, error = capsys.readouterr()
    assert [json.loads(line)["body"] for line in out.splitlines()] == ["plain"]
    assert error.count(f"the body {HAS_MORE}; raise the limit: --max-body-bytes") == 5


def test_searches_decompress_large_bodies_one_at_a_time(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, decode = 0, 0, matches.message_batches

    def decode_large(*arguments: Any, limits: BodyLimits, **how: Any) -> Iterator[pa.RecordBatch]:
        nonlocal running, most
        running += limits.body_bytes > 1000
        most = max(most, running)
        try:
            yield from decode(*arguments, limits=limits, **how)
        finally:
            running -= limits.body_bytes > 1000

    def search(_: int) -> int:
        wanted = MessageFilter(words=("xyz",))
        found = LogSearch(packed, CONFIG, wanted, skip_damage=True)
        return len(list(found.messages()))

    monkeypatch.setattr(matches, "_SMALL_BODY", 1000)
    monkeypatch.setattr(matches, "message_batches", decode_large)
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(search, range(4))] == [0] * 4
    assert most == 1


def test_one_message_shows_and_writes_no_body_beyond_the_limit(
    bombs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MessageStore.open(bombs) as s:
        at = s.get_message("T", 0, 1).messages[0].commit_log_offset
    place = ["message", str(bombs), "--commit-log-offset", str(at)]
    assert run(place) == 0
    assert LIMIT in capsys.readouterr().out
    assert run([*place, "--body-to", str(tmp_path / "body")]) == 2
    assert LIMIT in capsys.readouterr().err
    assert not (tmp_path / "body").exists()


def test_the_limit_is_an_option(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["get", str(packed), *QUEUE, "--offset", "0", "--max", "1"]
    assert run([*command, "--json", "--max-body-bytes", str(MEGABYTE - 1)]) == 0
    assert f"more than {MEGABYTE - 1} bytes" in json.loads(capsys.readouterr().out)["body_error"]
    assert run([*command, "--json", "--max-body-bytes", "1m"]) == 0
    assert json.loads(capsys.readouterr().out)["body"] == "x" * MEGABYTE
    assert run([*command, "--max-body-bytes", "50"]) == 0
    assert "(the body of the message at commit log offset 0 decom" in capsys.readouterr().out
    for value in ("0", "-1", "9", "3g", "9" * 30 + "t", "x"):
        assert run([*command, "--max-body-bytes", value]) == (0 if value == "9" else 2), value
        errors = capsys.readouterr().err
        assert value == "9" or f"--max-body-bytes '{value}'" in errors


def test_any_number_of_bodies_is_printed(packed: Path) -> None:
    code, out, peak = reput("get", packed, *QUEUE, "--offset", "0", "--max", "40", "--json")
    _, _, base = reput("get", packed, *QUEUE, "--offset", "0", "--max", "1", "--json")
    assert code == 0
    assert [len(json.loads(line)["body"]) for line in out.splitlines()] == [MEGABYTE] * 40
    assert peak - base < 20


def test_a_call_keeps_bodies_up_to_four_times_the_limit(packed: Path) -> None:
    with MessageStore.open(packed) as s:
        s.max_body_bytes = 2 * MEGABYTE
        for messages in (s.get_message("T", 0, 0).messages, s.query_message("T", "k").messages):
            assert [len(m.body) for m in messages[:8]] == [MEGABYTE] * 8
            assert len(messages[0].body) == MEGABYTE  # counted once
            with pytest.raises(BodyTooLargeError, match=f"of one call .* {8 * MEGABYTE} bytes"):
                _ = messages[8].body
            assert len(messages[8].read_body()) == MEGABYTE
        s.max_body_bytes = MEGABYTE - 1
        with pytest.raises(BodyTooLargeError, match="commit log offset 0 "):
            _ = s.get_message("T", 0, 0).messages[0].body
        found = s.look_message_by_offset(0)
        assert found is not None
        with pytest.raises(BodyTooLargeError, match="commit log offset 0 "):
            _ = found.body


def test_bodies_that_are_not_compressed_have_no_limit(bombs: Path) -> None:
    with MessageStore.open(bombs) as s:
        s.max_body_bytes = 1
        assert s.get_message("T", 0, 0).messages[0].body == b"plain"
    assert BodyLimit(1).call_bytes == 4
