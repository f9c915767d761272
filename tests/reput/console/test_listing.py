"""What a console shows while it cannot list topics and queues: a bug, or a log without queues."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from reput.cli import run
from reput.console import overview
from tests.support.consoles import Console, console, source, wait_until
from tests.support.dispatching import dispatch_all
from tests.support.stores.written import make_store


def has_failed(c: Console) -> int:
    """Return the metric that alerts."""
    found = re.search(
        r"^reput_store_read_failed\{.*\} ([01])", c.get("/metrics").text, re.MULTILINE
    )
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("where", ["describe_topics", "_count_files"])
def test_a_bug_in_a_listing_is_a_problem_until_a_listing_succeeds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("x")

    store_root, output = tmp_path / "store", tmp_path / "out"
    dispatch_all(store_root, output, make_store(store_root, 30))
    with monkeypatch.context() as patch, console(source(store_root, output)) as c:
        patch.setattr(overview, where, fail)
        c.api("b")
        wait_until(lambda: c.api("b/status")["problem"] is not None)
        assert c.api("b/status")["problem"].startswith("internal error: KeyError")
        assert c.get("/api/brokers").json()["brokers"][0]["problem"] is not None
        for page in ("", "/health"):
            assert "internal error: KeyError" in c.get(f"/brokers/b{page}").text
        if where == "describe_topics":
            assert "Groups cannot be listed:" in c.get("/brokers/b/groups").text
            assert c.api("b/topics/TopicA")["groups"] is None
            assert (c.api("b")["groups"], c.api("b")["groups_total"]) == (None, None)
            assert "Groups cannot be listed:" in c.get("/brokers/b/topics/TopicA").text
        assert has_failed(c) == 1
        patch.undo()
        wait_until(lambda: c.api("b")["status"]["problem"] is None)
        assert has_failed(c) == 0
        assert c.api("b")["topics"]
    assert [r.exc_info is not None for r in caplog.records if "listed" in r.getMessage()] == [True]


@pytest.mark.parametrize("has_output", [True, False])
def test_a_log_without_queues_is_no_problem_and_the_command_builds_them(
    tmp_path: Path, *, has_output: bool
) -> None:
    store_root, output = tmp_path / "a store", tmp_path / "out"
    make_store(store_root, 30)
    if has_output:
        output.mkdir()
    with console(source(store_root, output if has_output else None)) as c:
        wait_until(lambda: c.api("b")["status"]["build_command"] is not None)
        status = c.api("b/status")
        assert (status["problem"], status["damage"]) == (None, [])
        assert has_failed(c) == 0
        assert "This log has no queues yet" in c.get("/brokers/b").text
        assert "reput rebuild" in c.get("/brokers/b").text
        assert "Groups are not known" in c.get("/brokers/b/groups").text
        assert len(c.api("b/messages", topic="TopicB")["messages"]) == 10
        words = shlex.split(status["build_command"])
        assert words[0] == "reput"
        assert run([str(output) if word == "OUTPUT" else word for word in words[1:]]) == 0
        if has_output:
            wait_until(lambda: bool(c.api("b")["topics"]))
            assert c.api("b/status")["build_command"] is None
    with console(source(store_root, output)) as c:
        wait_until(lambda: bool(c.api("b")["topics"]))


def test_queues_that_are_gone_are_a_problem(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    dispatch_all(store_root, output, make_store(store_root, 30))
    with console(source(store_root, output)) as c:
        wait_until(lambda: bool(c.api("b")["topics"]))
        shutil.rmtree(output)
        output.mkdir()
        wait_until(lambda: c.api("b")["status"]["problem"] is not None)
        wait_until(lambda: "nothing has been dispatched" in str(c.api("b")["status"]["problem"]))
        assert c.api("b/status")["build_command"] is None
        assert has_failed(c) == 1


def test_health_names_a_log_file_that_is_none(tmp_path: Path) -> None:
    make_store(tmp_path, 3000)
    with console(source(tmp_path)) as c:
        assert c.api("b/health")["damage"] == []
        file = sorted((tmp_path / "commitlog").iterdir())[1]
        file.unlink()
        os.mkfifo(file)
        wait_until(lambda: c.api("b/health")["damage"] != [])
        assert str(file) in c.get("/brokers/b/health").text


def test_a_log_that_vanished_is_not_an_empty_one(tmp_path: Path) -> None:
    make_store(tmp_path, 3000)
    log, kept = tmp_path / "commitlog", tmp_path / "kept"
    with console(source(tmp_path)) as c:
        assert len(c.api("b/messages")["messages"]) > 0
        log.rename(kept)
        log.mkdir()
        for path in ("messages", "usage", "pending"):
            answer = c.get(f"/api/brokers/b/{path}")
            assert answer.status_code == 503, path
            assert "no longer has any file" in answer.json()["error"]
        assert c.get("/healthz").text == "b: cannot be read\n"
        log.rmdir()
        kept.rename(log)
        assert len(c.api("b/messages")["messages"]) > 0
        assert c.get("/healthz").status_code == 200
