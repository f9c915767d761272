"""``reput search`` and ``tail``: output, exit codes, signals; a tail follows a writer."""

import json
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reput.cli import run
from reput.cli import search as search_module
from store.commitlog.record import NewMessage
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch
from tests.logs.build import PREPARED, Message, build_log, write_log
from tests.support.bulk_writer import BulkWriter
from tests.support.commands import REPUT
from tests.support.dispatching import dispatch_all
from tests.support.stores.written import TEMPLATES, corrupt, make_store
from tests.support.terminal import on_terminal

FILE_SIZE = 4096
START = 1_700_000_000_000  # 2023-11-14T22:13:20Z
COUNT = 60

Ran = tuple[int, str, str]
Reput = Callable[..., Ran]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of 60 messages, one per second, without queues or index."""
    store_root = tmp_path_factory.mktemp("store")
    messages = [
        Message(
            topic="TU"[n % 2],
            queue_id=n % 3,
            queue_offset=n,
            body=f"order {n}".encode(),
            properties=[
                ("KEYS", f"k{n} all"),
                ("TAGS", "ABC"[n % 3]),
                ("UNIQ_KEY", f"u{n}"),
                ("city", "Berlin" if n % 10 == 0 else "Rome"),
            ],
            sys_flag=PREPARED if n == 7 else 0,
            store_timestamp=START + 1000 * n,
        )
        for n in range(COUNT)
    ]
    write_log(build_log(messages, FILE_SIZE), store_root / "commitlog")
    (store_root / "broker.conf").write_text(f"mappedFileSizeCommitLog={FILE_SIZE}\n")
    return store_root


@pytest.fixture
def reput(capfd: pytest.CaptureFixture[str]) -> Reput:
    def call(*arguments: object) -> Ran:
        code = run(list(map(str, arguments)))
        return code, *capfd.readouterr()

    return call


def numbers(text: str) -> list[int]:
    """Return the numbers of the messages in JSON lines."""
    return [int(json.loads(line)["body"].split()[1]) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], range(COUNT)),
        (["--topic", "U"], range(1, COUNT, 2)),
        (["--topic", "U", "--topic", "T", "--queue", "2"], range(2, COUNT, 3)),
        (["--from-time", START + 50_000, "--to-time", "2023-11-14T22:14:12Z"], [50, 51, 52]),
        (["--to-time", "-2h", "--from-time", START + 58_000], [58, 59]),
        (["--key", "k7"], [7]),
        (["--key", "k8", "--key", "u9"], [8, 9]),
        (["--tag", "A || B", "--key", "k3", "--key", "k4", "--key", "k5"], [3, 4]),
        (["--property", "city=Berlin"], range(0, COUNT, 10)),
        (["--property", "city=Berlin", "--property", "KEYS=k20 all"], [20]),
        (["--body", "^order 1.$"], range(10, 20)),
        (["--body", "(?i)ORDER 33"], [33]),
        (["--newest-first", "--max", "3"], [59, 58, 57]),
        (["--newest-first", "--topic", "T", "--key", "all", "--max", "2"], [58, 56]),
    ],
)
def test_a_search_prints_what_matches(
    reput: Reput, store: Path, options: list[object], expected: list[int]
) -> None:
    code, out, err = reput("search", store, *options, "--json")
    assert (code, err) == (0, "")
    assert list(expected) == numbers(out)


def test_a_search_prints_a_line_for_each_message(reput: Reput, store: Path, berlin: None) -> None:
    code, out, err = reput("search", store, "--topic", "U", "--max", "2")
    assert (code, err) == (0, "")
    head, first, second = (re.split(r" {2,}", line.strip()) for line in out.splitlines())
    names = ["topic", "queue", "offset", "commit log", "stored"]
    assert [*names, "tags", "keys", "unique key", "body"] == head
    assert first[:3] == ["U", "1", "1"]
    assert first[4:] == ["2023-11-14T23:13:21.000+01:00", "B", "k1 all", "u1", "order 1"]
    assert second[-3:] == ["k3 all", "u3", "order 3"]


def test_a_search_on_a_terminal_shows_what_fits(store: Path) -> None:
    command = ["search", str(store), "--topic", "U", "--tag", "B", "--max", "2"]
    (shown,) = on_terminal([command], 60)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown)
    assert "topic  offset  stored                   tags  keys    body" in text
    assert "U           1  2023-11-14 23:13:21.000  B     k1 all  order…" in text


def test_a_search_without_a_match_exits_with_1(reput: Reput, store: Path) -> None:
    code, out, err = reput("search", store, "--topic", "none")
    assert (code, out) == (1, "")
    assert err.startswith("no message matches\n")
    code, out, _ = reput("search", store, "--from-time", "now", "--json")
    assert (code, json.loads(out)["status"]) == (1, "NOT_FOUND")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--body", "(a"], "regular expression '(a'"),
        (["--property", "city"], "--property 'city' is not NAME=VALUE"),
        (["--tag", " || "], "names no tag"),
        (["--from-time", "-2x"], "nor relative"),
        (["--from-time", "now", "--to-time", "-1m"], "is later than"),
        (["--max", "0"], "--max"),
    ],
)
def test_a_malformed_option_is_refused(
    reput: Reput, store: Path, options: list[str], words: str
) -> None:
    code, out, err = reput("search", store, *options)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize("order", [[], ["--newest-first"]])
def test_a_search_passes_damage_and_exits_with_3(
    reput: Reput, tmp_path: Path, order: list[str]
) -> None:
    make_store(tmp_path, 900)
    everything = offsets(reput("search", tmp_path, "--json", *order)[1])
    corrupt(tmp_path / "commitlog" / f"{65536:020d}", 88)
    code, out, err = reput("search", tmp_path, "--json", *order)
    assert code == 3
    assert "at offset 65536: " in err
    assert "--fail-on-data-loss" not in err
    assert offsets(out) == [at for at in everything if at != 65536]


def test_a_tail_reports_the_newest_record_if_it_cannot_be_read(
    reput: Reput, tmp_path: Path
) -> None:
    config = make_store(tmp_path, 900)
    last = list(LogSearch(tmp_path, config, MessageFilter()).messages())[-1]
    corrupt(Path(last.path), last.commit_log_offset % 65536 + last.spans.body_at)
    code, out, err = reput("tail", tmp_path, "--topic", last.topic, "-n", "2", "--json")
    assert code == 3
    assert f"at offset {last.commit_log_offset}: " in err
    assert len(out.splitlines()) == 2


def offsets(out: str) -> list[int]:
    return [json.loads(line)["commit_log_offset"] for line in out.splitlines()]


def test_ctrl_c_ends_a_search_with_what_was_found(
    reput: Reput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, 3000)
    found = []

    def printer(**_: Any) -> Callable[[Any, str], None]:
        def print_message(message: Any, _broker: str) -> None:
            found.append(message)
            signal.raise_signal(signal.SIGINT)

        return print_message

    monkeypatch.setattr(search_module, "message_printer", printer)
    code, _, err = reput("search", tmp_path)
    assert code == 0
    assert len(found) == 1
    assert "interrupted: 0 bytes of 482 kB were searched" in err


def test_a_search_that_was_interrupted_before_a_match_says_no_more_than_that(
    reput: Reput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, 300)

    def interrupted(*_: Any, **__: Any) -> Iterator[Any]:
        signal.raise_signal(signal.SIGINT)
        return iter(())

    monkeypatch.setattr(search_module, "_merged", interrupted)
    code, out, err = reput("search", tmp_path, "--key", "nowhere")
    assert (code, out) == (130, "")
    assert "interrupted: 0 bytes of" in err
    assert "no message matches" not in err


def test_tail_prints_the_newest_messages_in_log_order(reput: Reput, store: Path) -> None:
    for options, expected in (
        (["--topic", "T"], range(40, 60, 2)),
        (["--topic", "T", "--topic", "U", "-n", "3"], [57, 58, 59]),
        (["--topic", "T", "--tags", "A", "-n", "2"], [48, 54]),
        (["--topic", "T", "--since", START + 55_000], [56, 58]),
        (["--topic", "T", "--since", START, "-n", "1"], [58]),
    ):
        code, out, err = reput("tail", store, *options, "--json")
        assert (code, err) == (0, "")
        assert list(expected) == numbers(out)
    code, _, err = reput("tail", store, "--topic", "X")
    assert code == 1
    assert err.startswith("no message of topic 'X' matches")


@contextmanager
def following(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a tail as a process of its own."""
    command = [*REPUT, "tail", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_tail_follows_a_writer_over_rolls_and_expiry(
    tmp_path: Path, number: signal.Signals
) -> None:
    config = make_store(tmp_path, 30)
    with following(tmp_path, "--topic", "TopicB", "-n", "1", "-f", "--json") as process:
        assert process.stdout is not None
        found = [json.loads(process.stdout.readline())]
        for part in range(1, 8):
            with BulkWriter(tmp_path, config) as writer:
                writer.append_many(TEMPLATES, 300, first=300 * part)
            found += [json.loads(process.stdout.readline()) for _ in range(100)]
            if part == 4:
                min((tmp_path / "commitlog").iterdir()).unlink()
        process.send_signal(number)
        assert process.wait() == 0
        assert process.stdout.read() == ""
    offsets = [m["commit_log_offset"] for m in found]
    assert sorted(set(offsets)) == offsets
    assert offsets[-1] > 3 * 65536
    assert {m["topic"] for m in found} == {"TopicB"}


def test_a_tail_of_no_lines_follows_from_the_end(tmp_path: Path) -> None:
    config = make_store(tmp_path, 30)
    with following(tmp_path, "--topic", "TopicB", "-n", "0", "-f", "--json") as process:
        assert process.stdout is not None
        first = threading.Thread(target=process.stdout.readline)
        first.start()
        while first.is_alive():  # until the tail has started, which it does not show
            with BulkWriter(tmp_path, config) as writer:
                writer.append(NewMessage("TopicB", 0, b"new"))
        with BulkWriter(tmp_path, config) as writer:
            writer.append(NewMessage("TopicB", 0, b"last"))
        while (body := json.loads(process.stdout.readline())["body"]) != "last":
            assert body == "new"


def test_get_waits_for_the_next_message(tmp_path: Path) -> None:
    config = make_store(tmp_path, 30)
    dispatch_all(tmp_path, tmp_path, config)
    place = ("--topic", "TopicB", "--queue", "0", "--offset", "latest", "--wait", "120")
    command = [*REPUT, "get", str(tmp_path), *place, "--max", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            with BulkWriter(tmp_path, config) as writer:
                writer.append(NewMessage("TopicB", 0, b"new"))
            dispatch_all(tmp_path, tmp_path, config)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["body"] == "new"
    assert process.returncode == 0
