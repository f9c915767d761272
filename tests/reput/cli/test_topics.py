"""``reput topics``: queues as the broker saw them, lags computed by hand, the broker's files."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from reput.cli import run
from store.config import StoreConfig
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.logs.build import Message, build_log, write_log
from tests.support.dispatching import dispatch_all

FILE_SIZE = 4096
START = 1_700_000_000_000
MINUTE = 60_000
CONF = f"mappedFileSizeCommitLog={FILE_SIZE}\nmappedFileSizeConsumeQueue=400\nmaxIndexNum=1000\n"
TOPICS = '{"topicConfigTable":{"T":{"perm":6,"readQueueNums":8,"writeQueueNums":4,"attributes":{"message.type":"NORMAL"}},"Idle":{"perm":4}}}'  # noqa: E501 - a file's text
OFFSETS = '{"offsetTable":{"T@all":{0:10,1:5},"T@behind":{0:4},"T@ahead":{1:6},"Gone@g":{0:3}}}'
DELAYS = '{"offsetTable":{1:1}}'

CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE, mapped_file_size_consume_queue=400, max_index_num=1000
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Made:
    store_root: Path
    output: Path


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Write topic T: a message per minute in queue 0, five in queue 1; two are delayed."""
    store_root = tmp_path / "store"
    messages = [
        Message(topic="T", queue_offset=n, store_timestamp=START + n * MINUTE) for n in range(10)
    ]
    messages += [
        Message(topic="T", queue_id=1, queue_offset=n, store_timestamp=START + n) for n in range(5)
    ]
    messages += [
        Message(
            topic="SCHEDULE_TOPIC_XXXX",
            queue_offset=n,
            properties=[("DELAY", "1")],
            store_timestamp=START + n * MINUTE,
        )
        for n in range(3)
    ]
    write_log(build_log(messages, FILE_SIZE), store_root / "commitlog")
    (store_root / "broker.conf").write_text(CONF)
    (store_root / "config").mkdir()
    (store_root / "config/topics.json").write_text(TOPICS)
    (store_root / "config/consumerOffset.json").write_text(OFFSETS)
    (store_root / "config/delayOffset.json").write_text(DELAYS)
    output = tmp_path / "out"
    dispatch_all(store_root, output, CONFIG)
    return Made(store_root, output)


def topics(
    made: Made, capture: pytest.CaptureFixture[str], *options: str
) -> tuple[int, list[Row], str]:
    code = run(["topics", str(made.store_root), "--output", str(made.output), "--json", *options])
    out, err = capture.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def rows(found: list[Row], kind: str) -> list[Row]:
    return [row for row in found if row["row"] == kind]


BROKERS = [path for path in ARCHIVES if archive_name(path) in ("g4", "g4b")]


@pytest.mark.parametrize("golden", BROKERS, ids=archive_name, indirect=True)
def test_queues_are_as_the_broker_answered(
    golden: Golden, capfd: pytest.CaptureFixture[str]
) -> None:
    made = Made(golden.store_root, golden.directory / "expected")
    code, found, _ = topics(made, capfd, "--broker-version", golden.version)
    assert code == 0
    answers = json.loads((golden.directory / "answers.json").read_text("utf-8"))["queues"]
    expected = {
        (q["topic"], q["queue_id"]): (q["min_offset"], q["max_offset"], q["earliest_message_time"])
        for q in answers
        if q["max_offset"]
    }
    queues = rows(found, "queue")
    assert expected == {
        (q["topic"], q["queue_id"]): (q["min_offset"], q["max_offset"], q["earliest_timestamp"])
        for q in queues
    }
    latest = {(q["topic"], q["queue_id"]): q["latest_timestamp"] for q in queues}
    for q in answers:
        times = dict(q["store_time_at"])
        if q["max_offset"] and q["max_offset"] - 1 in times:
            assert latest[q["topic"], q["queue_id"]] == times[q["max_offset"] - 1]
    lags = {(g["queue_id"]): (g["offset"], g["lag"]) for g in rows(found, "group")}
    ends = [q["max_offset"] for q in queues if q["topic"] == "MyTopic"]
    offsets = {"g4": [50, 48, 47, 59], "g4b": [49, 48, 50, 54]}[golden.name]
    assert lags == {i: (o, e - o) for i, (o, e) in enumerate(zip(offsets, ends, strict=True))}
    assert [row["problem"] for row in rows(found, "config_file")] == [None] * 3


def test_lags_are_shown_in_messages_and_time(made: Made, capfd: pytest.CaptureFixture[str]) -> None:
    code, found, err = topics(made, capfd)
    assert (code, err) == (0, "")
    lags = {
        (g["group"], g["queue_id"]): (g["offset"], g["lag"], g["lag_ms"], g["next_timestamp"])
        for g in rows(found, "group")
    }
    assert lags == {
        ("all", 0): (10, 0, 0, None),
        ("all", 1): (5, 0, 0, None),
        ("behind", 0): (4, 6, 5 * MINUTE, START + 4 * MINUTE),
        ("behind", 1): (None, None, None, None),
        ("ahead", 0): (None, None, None, None),
        ("ahead", 1): (6, -1, 0, None),
        ("g", 0): (3, -3, 0, None),
    }
    (level,) = rows(found, "delay_level")
    assert (level["level"], level["queue_id"], level["lag"], level["lag_ms"]) == (1, 0, 2, MINUTE)


def test_topics_show_what_the_broker_configured(
    made: Made, capfd: pytest.CaptureFixture[str]
) -> None:
    _, found, _ = topics(made, capfd)
    by_name = {row["topic"]: row for row in rows(found, "topic")}
    assert list(by_name) == ["Idle", "SCHEDULE_TOPIC_XXXX", "T"]
    assert by_name["T"]["queue_ids"] == [0, 1]
    assert by_name["T"]["config"] == {
        "read_queue_nums": 8,
        "write_queue_nums": 4,
        "perm": 6,
        "attributes": {"message.type": "NORMAL"},
    }
    assert by_name["Idle"]["queue_ids"] == []
    assert by_name["SCHEDULE_TOPIC_XXXX"]["config"] is None


def test_expired_messages_count_as_lag_and_are_named(
    made: Made, capfd: pytest.CaptureFixture[str]
) -> None:
    messages = [
        Message(topic="T", queue_offset=n, body=bytes(1000), store_timestamp=START + n * MINUTE)
        for n in range(9)
    ]
    aged = Made(made.store_root.parent / "aged", made.store_root.parent / "aged")
    write_log(build_log(messages, FILE_SIZE), aged.store_root / "commitlog")
    (aged.store_root / "broker.conf").write_text(CONF)
    dispatch_all(aged.store_root, aged.store_root, CONFIG)
    (aged.store_root / "commitlog" / ("0" * 20)).unlink()  # 3 messages
    (aged.store_root / "config").mkdir()
    (aged.store_root / "config/consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:1}}}')
    code, found, _ = topics(aged, capfd)
    assert code == 0
    (queue,), (group,) = rows(found, "queue"), rows(found, "group")
    assert (queue["min_offset"], queue["max_offset"]) == (3, 9)
    assert queue["earliest_timestamp"] == START + 3 * MINUTE
    assert (group["lag"], group["expired"], group["lag_ms"]) == (8, 2, 5 * MINUTE)
    assert run(["topics", str(aged.store_root)]) == 0
    assert "2 of these have expired" in capfd.readouterr().out


def test_a_queue_whose_messages_have_all_expired_has_no_lag_in_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    messages = [Message(topic="T", queue_offset=n, body=bytes(1250)) for n in range(3)]
    messages += [
        Message(topic="U", queue_offset=n, store_timestamp=START - n * MINUTE) for n in range(3)
    ]
    aged = Made(tmp_path, tmp_path)
    files = build_log(messages, FILE_SIZE)
    write_log(files, tmp_path / "commitlog")
    (tmp_path / "broker.conf").write_text(CONF)
    dispatch_all(tmp_path, tmp_path, CONFIG)
    (tmp_path / "config").mkdir()
    offsets = '{"offsetTable":{"T@g":{0:1},"U@g":{0:0}}}'
    (tmp_path / "config/consumerOffset.json").write_text(offsets)
    assert len(files) == 2
    (tmp_path / "commitlog" / ("0" * 20)).unlink()
    code, found, _ = topics(aged, capfd)
    assert code == 0
    expired, stepped_back = rows(found, "group")
    assert (expired["lag"], expired["expired"], expired["lag_ms"]) == (2, 2, None)
    # Its clock stepped back: the newest message is the earliest.
    assert (stepped_back["lag"], stepped_back["lag_ms"]) == (3, 0)
    assert stepped_back["next_timestamp"] == START


def test_offsets_of_light_queues_are_read_with_enable_lmq(
    made: Made, capfd: pytest.CaptureFixture[str]
) -> None:
    other = made.store_root.parent / "lmq"
    (made.store_root / "broker.conf").write_text(CONF + "enableLmq=true\n")
    (made.store_root / "config/lmqConsumerOffset.json").write_text(
        '{"offsetTable":{"T@lmq":{0:10}},"lmqOffsetTable":{}}'
    )
    dispatch_all(made.store_root, other, replace(CONFIG, enable_lmq=True))
    _, found, _ = topics(Made(made.store_root, other), capfd)
    assert {group["group"] for group in rows(found, "group")} == {"lmq"}


def test_a_batch_topic_is_refused_also_by_the_backup(
    made: Made, capfd: pytest.CaptureFixture[str]
) -> None:
    config = made.store_root / "config"
    batch = TOPICS.replace("message.type", "+queue.type").replace("NORMAL", "BatchCQ")
    (config / "topics.json.bak").write_text(batch)
    (config / "topics.json").write_bytes(b"")
    assert run(["topics", str(made.store_root)]) == 5
    err = capfd.readouterr().err
    assert "topics.json.bak: topic 'T' has queue.type=BatchCQ" in err


def test_tables_show_everything(
    made: Made, capfd: pytest.CaptureFixture[str], berlin: None
) -> None:
    assert run(["topics", str(made.store_root), "--output", str(made.output)]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    lines = [line.split() for line in out.splitlines()]
    first = "2023-11-14T23:13:20.000+01:00"
    assert ["Idle", "R--"] in lines
    assert [
        "T", "RW-", "8", "4", "0", "0", "10", first, "2023-11-14T23:22:20.000+01:00",
        "message.type=NORMAL",
    ] in lines  # fmt: skip
    assert ["1", "0", "5", first, "2023-11-14T23:13:20.004+01:00"] in lines
    behind = ["behind", "T", "0", "4", "10", "6", "5m", "00s", "2023-11-14T23:17:20.000+01:00"]
    assert behind in lines
    assert ["behind", "T", "1", "none", "5", "nothing", "committed"] in lines
    assert ["ahead", "T", "1", "6", "5", "-1", "0.000s", "beyond", "the", "queue's", "end"] in lines
    assert ["1", "0", "1", "3", "2", "1m", "00s", "2023-11-14T23:14:20.000+01:00"] in lines


def test_a_missing_or_torn_file_is_reported(made: Made, capfd: pytest.CaptureFixture[str]) -> None:
    config = made.store_root / "config"
    (config / "topics.json").unlink()
    (config / "consumerOffset.json").rename(config / "consumerOffset.json.bak")
    (config / "consumerOffset.json").write_bytes(bytes(200))
    code, found, _ = topics(made, capfd)
    files = {Path(row["path"]).name: row for row in rows(found, "config_file")}
    assert code == 0
    assert "is missing" in files["topics.json"]["problem"]
    assert files["topics.json"]["read_from"] is None
    assert "200 bytes are blank" in files["consumerOffset.json"]["problem"]
    assert files["consumerOffset.json"]["read_from"].endswith(".bak")
    assert len(rows(found, "group")) == 7
    assert run(["topics", str(made.store_root), "--output", str(made.output)]) == 0
    err = capfd.readouterr().err.splitlines()
    assert [files[name]["problem"] for name in ("topics.json", "consumerOffset.json")] == err
    for file in config.iterdir():
        file.unlink()
    config.rmdir()
    assert run(["topics", str(made.store_root), "--output", str(made.output)]) == 0
    out, err_text = capfd.readouterr()
    assert "consumer groups" not in out
    assert err_text.startswith(f"{config} is missing: ")
    assert err_text.count("\n") == 1


def test_a_damaged_queue_is_reported_and_the_others_are_shown(
    made: Made, capfd: pytest.CaptureFixture[str]
) -> None:
    log = made.store_root / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    data[4] ^= 0xFF  # of the first record: queue 0 of T
    log.write_bytes(data)
    code, found, err = topics(made, capfd)
    assert code == 3
    assert f"{log} at offset 0" in err
    queues = {(q["topic"], q["queue_id"]): q for q in rows(found, "queue")}
    assert f"{log} at offset 0" in queues["T", 0]["damage"]
    assert queues["T", 1]["max_offset"] == 5
    lags = {(g["group"], g["queue_id"]): g for g in rows(found, "group")}
    assert lags["behind", 0]["lag"] is None
    assert lags["all", 1]["lag"] == 0
    assert run(["topics", str(made.store_root), "--output", str(made.output)]) == 3
    assert ["0", "damaged"] in [line.split()[-2:] for line in capfd.readouterr().out.splitlines()]


@pytest.mark.parametrize("is_brokers", [False, True], ids=["ours", "a broker's"])
def test_a_queue_file_of_a_wrong_size_affects_only_that_queue(
    made: Made, capfd: pytest.CaptureFixture[str], is_brokers: bool
) -> None:
    file = made.output / "consumequeue/T/0" / ("0" * 20)
    file.write_bytes(file.read_bytes()[:-7])
    if is_brokers:
        shutil.rmtree(made.output / "reput")
    code, found, err = topics(made, capfd)
    assert code == 3
    assert f"{file} at offset 0: the file has 393 bytes, not 400" in err
    queues = {(q["topic"], q["queue_id"]): q for q in rows(found, "queue")}
    assert "393 bytes" in queues["T", 0]["damage"]
    assert queues["T", 1]["max_offset"] == 5
    assert queues["SCHEDULE_TOPIC_XXXX", 0]["max_offset"] == 3
    assert run(["topics", str(made.store_root), "--output", str(made.output)]) == 3
    out, err = capfd.readouterr()
    assert ["SCHEDULE_TOPIC_XXXX", "0", "0", "3"] in [line.split()[:4] for line in out.splitlines()]
    assert err.count(f"reput: damaged: {file}") == 1


def test_a_record_that_cannot_be_read_affects_only_one_lag(
    made: Made, capfd: pytest.CaptureFixture[str]
) -> None:
    log = made.store_root / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[4 * size + 4] ^= 0xFF  # of message 4, the next one of the group
    log.write_bytes(data)
    code, found, err = topics(made, capfd)
    assert code == 3
    assert f"at offset {4 * size}" in err
    lags = {(g["group"], g["queue_id"]): g for g in rows(found, "group")}
    assert (lags["behind", 0]["lag"], lags["behind", 0]["lag_ms"]) == (6, None)
    assert f"at offset {4 * size}" in lags["behind", 0]["damage"]
    assert (lags["all", 0]["lag_ms"], "damage" in lags["all", 0]) == (0, False)
