"""Stores in any state: empty, without OUTPUT, damaged, growing, replaced, several at once."""

import json
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints.output import DispatchOutput
from checkpoints.state_paths import VERIFIED
from reput.cli import run
from reput.console.brokers import Broker
from reput.console.security import ConsoleSettings
from store.commitlog.record import NewMessage, make_properties
from store.errors import ConfigError, StoreError
from store.output.progress import PROGRESS
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch
from tests.support.bulk_writer import BulkWriter
from tests.support.consoles import console, source, wait_until
from tests.support.dispatching import HastyDisk, dispatch_all
from tests.support.rebuilding import rebuild_all
from tests.support.stores.rocksdb import make_rocksdb
from tests.support.stores.written import TEMPLATES, corrupt, make_store, small_config

SCRIPT = "<script>alert(1)</script>"
PAGES = ("", "/groups", "/health", "/messages", "/tail", "/pending", "/usage")


def test_an_empty_log(tmp_path: Path) -> None:
    make_store(tmp_path, 0)
    (tmp_path / "commitlog").mkdir(exist_ok=True)
    with console(source(tmp_path)) as c:
        assert c.api("b/messages")["messages"] == []
        for page in PAGES:
            assert c.get(f"/brokers/b{page}").status_code == 200
        assert c.get("/healthz").text == "ok\n"
        assert c.api("b")["topics"] == []


def test_a_store_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="commitlog does not exist"):
        Broker(source(tmp_path), ConsoleSettings())


def test_queues_in_rocksdb_are_a_problem_and_the_log_is_shown(tmp_path: Path) -> None:
    make_store(tmp_path, 30)
    make_rocksdb(tmp_path / "consumequeue")
    with console(source(tmp_path)) as c:
        c.api("b")
        assert "queues are in RocksDB and not read" in c.api("b/status")["problem"]
        assert len(c.api("b/messages", topic="TopicB")["messages"]) == 10
        for page in PAGES:
            assert c.get(f"/brokers/b{page}").status_code == 200


def test_output_may_be_made_while_the_console_runs(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store_root, 300)
    with console(source(store_root, output)) as c:
        answer = c.api("b")
        assert answer["topics"] is None
        assert "out is not a directory" in c.api("b/status")["problem"]
        assert c.get("/api/brokers/b/topics/TopicA").status_code == 503
        assert len(c.api("b/messages", max=500)["messages"]) == 300
        assert c.api("b/messages/0")["position"]["queue"] is None
        for page in PAGES:
            assert c.get(f"/brokers/b{page}").status_code == 200
        dispatch_all(store_root, output, config)
        assert c.api("b/topics/TopicA")["total"] == 2
        wait_until(lambda: c.api("b")["topics"] is not None)
        assert c.api("b/status")["reput_from_offset"] == c.api("b/status")["log_max_offset"]
        assert c.api("b/messages/0")["position"]["queue"]["queue_offset"] == 0


def test_the_status_counts_the_backlog(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store_root, 300)
    dispatch_all(store_root, output, config)
    with console(source(store_root, output), stuck_after=0.0) as c:
        before = c.api("b/status")
        assert (before["behind_bytes"], before["behind_ms"], before["is_stuck"]) == (0, 0, False)
        with BulkWriter(store_root, config) as writer:
            writer.append_many(TEMPLATES, 30, first=300)
        status = c.api("b/status")
        assert status["behind_bytes"] == status["log_max_offset"] - before["log_max_offset"]
        wait_until(lambda: c.api("b/status")["is_stuck"])
        response = c.get("/healthz")
        assert (response.status_code, response.text) == (503, "b: stuck for more than 0 s\n")


def test_the_last_recovery_and_the_last_verification_are_shown(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    dispatch_all(store_root, output, make_store(store_root, 300))
    with console(source(store_root, output)) as c:
        assert c.api("b/status")["recovered"] is None
        assert c.api("b/health")["verify"] is None
        assert "no result is recorded" in c.get("/brokers/b/health").text
        (output / "abort").touch()  # as if a broker had run on it
        (output / "checkpoint").write_bytes(bytes(4096))
        assert run(["recover", str(store_root), "--output", str(output)]) == 0
        assert run(["verify", str(store_root), "--output", str(output), "--record"]) == 0
        recovered = c.api("b/status")["recovered"]
        assert recovered["from_offset"] == recovered["to_offset"]
        assert recovered["reasons"]
        verified = c.api("b/health")["verify"]
        assert (verified["equal"], verified["messages"]) == (True, 300)
        assert "Recovered in the last 24 hours" in c.get("/brokers/b").text
        page = c.get("/brokers/b/health").text
        assert "equal, " in page
        assert "no result is recorded" not in page
        (output / VERIFIED).write_bytes(b"{}\n00000000\n")
        assert "does not match its checksum" in c.api("b/health")["verify"]["error"]
        assert "does not match its checksum" in c.get("/brokers/b/health").text


def test_hostile_numbers_and_surrogates_break_no_page(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store_root, 30)
    properties = {**make_properties(), "REAL_TOPIC": "X", "REAL_QID": "²"}
    with BulkWriter(store_root, config) as writer:
        at = writer.append(NewMessage("SCHEDULE_TOPIC_XXXX", 0, b"x", properties))
    offsets = {"offsetTable": {"TopicA@g\ud800": {"0": 1}, "TopicB@h": {"0": 10**400}}}
    (store_root / "config").mkdir()
    (store_root / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    topics = {"topicConfigTable": {"a\ud800b": {}, "TopicA": {}}}
    (store_root / "config" / "topics.json").write_text(json.dumps(topics))
    dispatch_all(store_root, output, config)
    with console(source(store_root, output)) as c:
        for page in (*PAGES, f"/messages/{at}", "/topics/TopicA"):
            assert c.get(f"/brokers/b{page}").status_code == 200, page
        assert c.get("/metrics").status_code == 200
        body = c.get("/brokers/b/messages/%0a0/body")
        assert body.headers["Content-Disposition"] == 'attachment; filename="b-0.bin"'


def test_a_damaged_queue_is_shown_and_the_others_are_read(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store_root, 300)
    dispatch_all(store_root, output, config)
    file = min((output / "consumequeue/TopicA/1").iterdir())
    file.write_bytes(file.read_bytes()[:100])
    with console(source(store_root, output)) as c:
        queues = c.api("b/topics/TopicA")["queues"]
        assert "100 bytes" in queues[1]["damage"]
        assert queues[0]["max_offset"] == 100
        (row,) = (t for t in c.api("b")["topics"] if t["topic"] == "TopicA")
        assert "100 bytes" in row["damage"][0]
        assert "100 bytes" in c.api("b/status")["damage"][0]
        assert "100 bytes" in c.api("b/health")["damage"][0]["text"]
        for page in (*PAGES, "/topics/TopicA"):
            assert c.get(f"/brokers/b{page}").status_code == 200


def test_a_damaged_message_is_an_error(tmp_path: Path) -> None:
    make_store(tmp_path, 30)
    with console(source(tmp_path)) as c:
        second = c.api("b/messages", order="oldest", max=2)["messages"][1]["commit_log_offset"]
        corrupt(tmp_path / "commitlog" / ("0" * 20), second + 100)
        response = c.get(f"/api/brokers/b/messages/{second}")
        assert (response.status_code, "damaged" in response.json()["error"]) == (409, True)
        assert c.get(f"/brokers/b/messages/{second}").status_code == 409


def test_a_read_only_store(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    dispatch_all(store_root, output, make_store(store_root, 300))
    before = _tree(tmp_path)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    try:
        with console(source(store_root, output)) as c:
            for page in (*PAGES, "/topics/TopicA", "/messages/0", "/messages/0/body"):
                assert c.get(f"/brokers/b{page}").status_code == 200
            assert len(c.api("b/messages", body="body")["messages"]) == 100
    finally:
        for path in [tmp_path, *tmp_path.rglob("*")]:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
    assert before == _tree(tmp_path)


def _tree(store_root: Path) -> dict[str, tuple[int, int]]:
    files = [path for path in store_root.rglob("*") if path.is_file()]
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in files}


def test_reads_go_on_while_rebuilt_files_are_swapped_in(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store_root, 900)
    dispatch_all(store_root, output, config)
    stop, failures = threading.Event(), []

    with console(source(store_root, output)) as c:

        def read() -> None:
            while not stop.is_set():
                response = c.get("/api/brokers/b/topics/TopicA")
                queues = response.json().get("queues", [])
                if [q.get("max_offset") for q in queues] != [300, 300]:
                    failures.append(response.text)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for _ in range(5):
            rebuild_all(store_root, output, config, disk=HastyDisk(), batch_bytes=1 << 20)
        stop.set()
        for reader in readers:
            reader.join()
    assert failures == []


def test_an_interrupted_swap_is_an_error_and_the_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store_root, 300)
    dispatch_all(store_root, output, config)
    DispatchOutput.open(output, store_root, config).close(clean=False)
    (output / "reput" / "swap").write_bytes(b"x")
    with console(source(store_root, output)) as c:
        assert c.get("/api/brokers/b/topics/TopicA").status_code == 503
        assert len(c.api("b/messages", max=500)["messages"]) == 300
        for page in PAGES:
            assert c.get(f"/brokers/b{page}").status_code == 200


def delete(output: Path) -> None:
    shutil.rmtree(output)


def replace_by_pipe(output: Path) -> None:
    shutil.rmtree(output)
    os.mkfifo(output)


def replace_progress_by_pipe(output: Path) -> None:
    (output / PROGRESS).unlink()
    os.mkfifo(output / PROGRESS)


def swap(output: Path) -> None:
    """Leave a swap in progress, whose owner is this process."""
    (output / "reput" / "swap").write_bytes(b"x")


@pytest.mark.parametrize("fail", [delete, replace_by_pipe, replace_progress_by_pipe, swap])
def test_output_that_cannot_be_read_holds_up_nothing_else(
    tmp_path: Path, fail: Callable[[Path], None]
) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store_root, 300)
    dispatch_all(store_root, output, config)
    owner = DispatchOutput.open(output, store_root, config)
    with console(source(store_root, output)) as c, ThreadPoolExecutor(30) as pool:
        assert c.get("/api/brokers/b/topics/TopicA").status_code == 200
        fail(output)
        began = time.monotonic()
        blocked = [pool.submit(c.get, "/api/brokers/b/topics/TopicA") for _ in range(30)]
        assert len(c.api("b/messages", max=500)["messages"]) == 300
        assert c.get("/healthz").status_code in (200, 503)
        assert c.api("b/status")["log_bytes"] > 0
        answered = time.monotonic() - began
        assert {response.result().status_code for response in blocked} == {503}
        assert answered < 5
        assert time.monotonic() - began < 10  # 8 at a time, each for 1 s
    with suppress(StoreError):  # its files are gone
        owner.close(clean=False)


def test_a_store_that_no_longer_holds_its_last_record_is_shown_as_damaged(tmp_path: Path) -> None:
    config = make_store(tmp_path / "one", 300)
    dispatch_all(tmp_path / "one", tmp_path / "one", config)
    last = list(LogSearch(tmp_path / "one", config, MessageFilter()).messages())[-1]
    corrupt(Path(last.path), last.commit_log_offset + last.spans.body_at)
    make_store(tmp_path / "two", 30)
    with console(source(tmp_path / "one", None, "one"), source(tmp_path / "two", None, "two")) as c:
        assert "dispatched last" in c.get("/api/brokers/one/topics/TopicA").json()["error"]
        assert len(c.api("one/messages", max=500)["messages"]) == 299
        assert len(c.api("two/messages", max=500)["messages"]) == 30
        wait_until(lambda: "dispatched last" in str(c.api("one/status")["problem"]))
        for page in PAGES:
            assert c.get(f"/brokers/one{page}").status_code == 200
        corrupt(Path(last.path), last.commit_log_offset + last.spans.body_at)
        assert c.api("one/topics/TopicA")["total"] == 2


def test_a_file_that_is_missing_between_others_is_damage(tmp_path: Path) -> None:
    make_store(tmp_path, 3000)
    files = sorted((tmp_path / "commitlog").iterdir())
    assert len(files) > 3
    with console(source(tmp_path)) as c:
        assert c.api("b/status")["damage"] == []
        files[1].unlink()
        (damage,) = c.api("b/status")["damage"]
        assert "offsets 65536 to 131072 are lost" in damage
        assert "no file holds" in c.api("b/health")["damage"][0]["text"]
        assert re.search(r"^reput_damage{.*} 1.0$", c.get("/metrics").text, re.MULTILINE)
        files[0].unlink()  # expiry deletes from the beginning
        assert c.api("b/status")["damage"] == []


def test_several_brokers_are_shown_side_by_side(tmp_path: Path) -> None:
    for name, count in (("one", 30), ("two", 60)):
        make_store(tmp_path / name, count)
    with console(*(source(tmp_path / n, None, n) for n in ("one", "two"))) as c:
        assert [b["broker"] for b in c.get("/api/brokers").json()["brokers"]] == ["one", "two"]
        assert c.get("/").status_code == 200
        for name, count in (("one", 30), ("two", 60)):
            found = c.api(f"{name}/messages", max=100)
            assert (len(found["messages"]), found["broker"]) == (count, name)
            assert {m["broker"] for m in found["messages"]} == {name}
        assert c.get("/brokers/three").status_code == 404


def test_the_only_broker_is_shown_at_once(tmp_path: Path) -> None:
    make_store(tmp_path, 3)
    with console(source(tmp_path, None, "a b/c")) as c:
        response = c.get("/")
        assert (response.status_code, response.headers["location"]) == (302, "/brokers/a%20b%2Fc")


def test_hostile_content_is_escaped_everywhere(tmp_path: Path) -> None:
    make_store(tmp_path, 0)
    hostile = NewMessage(
        SCRIPT.replace("/", "-"),
        0,
        SCRIPT.encode(),
        make_properties(keys=SCRIPT, tags=SCRIPT, **{SCRIPT: f"'\"{SCRIPT}"}),
    )
    with BulkWriter(tmp_path, small_config()) as writer:
        writer.append(hostile)
    dispatch_all(tmp_path, tmp_path / "out", small_config())
    os.mkdir(os.fsencode(tmp_path / "out" / "consumequeue") + b"/\xff<svg>")
    with console(source(tmp_path, tmp_path / "out")) as c:
        topic = "%3Cscript%3Ealert%281%29%3C-script%3E"
        for page in (
            *PAGES,
            f"/topics/{topic}",
            "/messages/0",
            "/messages?run=1",
            "/messages?key=<svg>",
        ):
            response = c.get(f"/brokers/b{page}")
            assert response.status_code == 200, page
            assert "<script>" not in response.text
            assert "<svg>" not in response.text
        found = c.api("b/messages/0")
        assert (found["tags"], found["body"]) == (SCRIPT, SCRIPT)
        assert c.get("/brokers/b/messages/0/body").content == SCRIPT.encode()


def test_a_body_beyond_what_is_shown_is_cut(tmp_path: Path) -> None:
    make_store(tmp_path, 0)
    body = json.dumps({"a": ["ä" * 700_000]}, ensure_ascii=False).encode()
    config = replace(small_config(), mapped_file_size_commit_log=4 << 20)
    conf = (tmp_path / "broker.conf").read_text().replace("65536", str(4 << 20))
    (tmp_path / "broker.conf").write_text(conf)
    with BulkWriter(tmp_path, config) as writer:
        writer.append(NewMessage("T", 0, body, make_properties()))
        odd = writer.append(NewMessage("T", 0, b"\xff" + body, make_properties()))
    with console(source(tmp_path)) as c:
        assert c.api(f"b/messages/{odd}")["body_encoding"] == "hex"
        found = c.api("b/messages/0")
        assert (found["body_truncated"], found["body_bytes"]) == (True, len(body))
        assert body.decode().startswith(found["body"])
        assert len(found["body"].encode()) > 1024 * 1024 - 4
        assert c.get("/brokers/b/messages/0/body").content == body
        assert len(found["body_hex"]) == 256
