"""The page of a consumer group, and which topics the overview leaves out."""

import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import quote

from reput.cli import run
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.writer import CommitLogWriter
from store.config import StoreConfig
from tests.support.consoles import Console, console, source, wait_until
from tests.support.dispatching import dispatch_all
from tests.support.stores.written import make_store

SCRIPT = "<script>g/1"
OFFSETS = {
    "TopicA@g": {"0": 90},
    "TopicB@g": {"0": 100},
    "%RETRY%g@g": {"0": 0},
    "TopicB@other": {"0": 0},
    f"TopicB@{SCRIPT}": {"0": 1},
}


def write_json(store_root: Path, name: str, content: dict[str, Any]) -> None:
    (store_root / "config").mkdir(exist_ok=True)
    (store_root / "config" / name).write_text(json.dumps(content))


def make(directory: Path, *topics: str) -> StoreConfig:
    """Write a store with 100 messages in each of three queues, and one in each of `topics`."""
    config = make_store(directory / "store", 300)
    with CommitLogWriter(directory / "store", config) as writer:
        for topic in topics:
            writer.append(NewMessage(topic, 0, b"x", make_properties()))
    write_json(directory / "store", "consumerOffset.json", {"offsetTable": OFFSETS})
    return config


def listed(c: Console, **params: Any) -> list[str]:
    wait_until(lambda: c.api("b")["topics"] is not None)
    return [topic["topic"] for topic in c.api("b", **params)["topics"]]


def test_a_group_is_shown_by_topic_and_queue(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    dispatch_all(
        store_root, output, make(tmp_path, "%RETRY%g", "%RETRY%g+TopicA", "%DLQ%g", "%DLQ%g2")
    )
    with console(source(store_root, output)) as c:
        listed(c)
        found = c.api("b/groups/g")
        assert {t["topic"]: (t["lag"], t["uncommitted"]) for t in found["topics"]} == {
            "TopicA": (10, 1), "%RETRY%g": (1, 0), "TopicB": (0, 0),
        }  # fmt: skip
        assert [(t["topic"], t["messages"]) for t in found["own_topics"]] == [
            ("%DLQ%g", 1), ("%RETRY%g", 1), ("%RETRY%g+TopicA", 1),
        ]  # fmt: skip
        queues = {(q["topic"], q["queue_id"]): q for q in found["queues"]}
        assert found["total"] == len(queues) == 4
        first, second = queues["TopicA", 0], queues["TopicA", 1]
        assert (first["offset"], first["max_offset"], first["lag"]) == (90, 100, 10)
        assert first["lag_ms"] >= 0
        assert (second["offset"], second["lag"]) == (None, None)
        text = c.get("/brokers/b/groups/g").text
        assert "nothing committed" in text
        assert "/brokers/b/topics/%25DLQ%25g" in text
        export = shlex.split(found["commands"][0])
        exported = [str(tmp_path / "export") if w == "DIRECTORY" else w for w in export[1:]]
        assert run([*exported, "--topic", "TopicB"]) == 1  # all of TopicB is consumed
        assert run(exported) == 0
        assert run(shlex.split(found["commands"][1])[1:]) == 0


def test_pages_with_groups_link_to_them(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    dispatch_all(store_root, output, make(tmp_path, "%RETRY%g"))
    with console(source(store_root, output)) as c:
        listed(c)
        for page in ("", "/groups", "/topics/TopicB"):
            for group in ("g", SCRIPT):
                assert (
                    f'href="/brokers/b/groups/{quote(group, safe="")}"'
                    in c.get(f"/brokers/b{page}").text
                )
        assert 'href="/brokers/b/groups/g"' in c.get("/brokers/b/topics/%25RETRY%25g").text
        assert c.api(f"b/groups/{quote(SCRIPT, safe='')}")["topics"][0]["lag"] == 99
        assert "<script>g" not in c.get(f"/brokers/b/groups/{quote(SCRIPT, safe='')}").text


def test_a_group_is_unknown_or_not_listed_yet(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    config = make(tmp_path, "%RETRY%silent")
    with console(source(store_root, output)) as c:
        assert c.api("b/groups/g")["topics"] is None
        assert "cannot be listed" in c.get("/brokers/b/groups/g").text
        dispatch_all(store_root, output, config)
        listed(c)
        assert c.get("/api/brokers/b/groups/none").status_code == 404
        assert c.get("/brokers/b/groups/none").status_code == 404
        assert c.api("b/groups/silent")["topics"] == []
        assert "committed no offset" in c.get("/brokers/b/groups/silent").text


def test_topics_that_are_only_the_broker_s_own_are_left_out(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    config = make(
        tmp_path, "%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "C"
    )
    template, plain = {"perm": 7}, {"perm": 6}
    own = {
        "TBW102": template, "broker-a": template, "C": template, "C_REPLY_TOPIC": plain,
        "%RETRY%other": plain, "%DLQ%other": plain, "SELF_TEST_TOPIC": plain,
    }  # fmt: skip
    users = {"Empty": plain, "My_REPLY_TOPIC": plain}
    write_json(store_root, "topics.json", {"topicConfigTable": own | users})
    dispatch_all(store_root, output, config)
    shown = ["%DLQ%g", "%RETRY%g", "C", "Empty", "My_REPLY_TOPIC", "TopicA", "TopicB"]
    hidden = {*own, "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_OP_HALF_TOPIC"} - {"C"}
    with console(source(store_root, output)) as c:
        assert listed(c) == shown
        assert c.api("b")["hidden"] == len(hidden)
        assert f"{len(hidden)} more topics are the broker's own" in c.get("/brokers/b").text
        assert {*listed(c, system=1)} == {*shown, *hidden}
        assert c.api("b", system=1)["hidden"] == 0
        assert "hide them" in c.get("/brokers/b?system=1").text
        assert 'name="system" value="1"' in c.get("/brokers/b?system=1").text
        page = c.get("/brokers/b?filter=SELF").text
        assert "The name of no topic of a user contains" in page
        assert "1 more topic is the broker's own" in page


def test_the_topic_of_delayed_messages_is_shown_while_it_holds_some(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    config = make(tmp_path, "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC")
    dispatch_all(store_root, output, config)
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    for offset, extra in ((0, {"SCHEDULE_TOPIC_XXXX", half}), (1, set())):
        write_json(store_root, "delayOffset.json", {"offsetTable": {"1": offset}})
        system = {f"{half}@CID_RMQ_SYS_TRANS": {"0": offset}}
        write_json(store_root, "consumerOffset.json", {"offsetTable": system})
        with console(source(store_root, output)) as c:
            assert {*listed(c)} == {"TopicA", "TopicB", *extra}


def test_a_damaged_topic_is_never_left_out(tmp_path: Path) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    dispatch_all(store_root, output, make(tmp_path, "%RETRY%g", "SELF_TEST_TOPIC"))
    for topic in ("%RETRY%g", "SELF_TEST_TOPIC"):
        (file,) = (output / "consumequeue" / topic / "0").iterdir()
        file.write_bytes(file.read_bytes()[:-7])
    with console(source(store_root, output)) as c:
        assert {"%RETRY%g", "SELF_TEST_TOPIC"} <= {*listed(c)}


def test_torn_offsets_are_a_problem_and_not_an_answer(tmp_path: Path) -> None:
    root, output = tmp_path / "store", tmp_path / "out"
    dispatch_all(root, output, make(tmp_path))
    path = root / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable": {"TopicA@g": {0:')
    with console(source(root, output)) as c:
        listed(c)
        for page in ("", "/groups", "/topics/TopicA"):
            found = c.api(f"b{page}")
            assert found["groups"] is None
            assert f"{path} is torn" in found["groups_problem"]
            assert "Groups cannot be listed" in c.get(f"/brokers/b{page}").text
        refused = c.get("/api/brokers/b/groups/g")
        assert refused.status_code == 503
        assert f"{path} is torn" in refused.json()["error"]
        assert c.get("/brokers/b/groups/g").status_code == 503
    path.unlink()
    with console(source(root, output)) as c:
        listed(c)
        found = c.api("b")
        assert (found["groups"], found["groups_problem"]) == ([], None)
        assert c.get("/api/brokers/b/groups/g").status_code == 404
