"""The broker's JSON files: real ones, fastjson's integer keys, and the remains of a crash."""

import json
from pathlib import Path

import pytest

from store.broker_files import (
    CommittedOffset,
    TimerCheckpoint,
    TopicConfig,
    parse_fastjson,
    read_consumer_offsets,
    read_delay_offsets,
    read_timer_checkpoint,
    read_timing_counts,
    read_topic_configs,
)
from tests.conftest import ARCHIVES, Golden, archive_name

OFFSETS = '{"offsetTable":{"T@G":{0:50,1:48\n\t\t}}}'
COMMITTED = [CommittedOffset("G", "T", 0, 50), CommittedOffset("G", "T", 1, 48)]


def stores(*names: str) -> pytest.MarkDecorator:
    archives = [path for path in ARCHIVES if archive_name(path) in names]
    assert len(archives) == len(names)
    return pytest.mark.parametrize("golden", archives, ids=archive_name, indirect=True)


def write(store_root: Path, name: str, text: str | bytes) -> None:
    (store_root / "config").mkdir(exist_ok=True)
    data = text if isinstance(text, bytes) else text.encode()
    (store_root / "config" / name).write_bytes(data)


@stores("g4", "g4b")
def test_the_files_of_a_real_broker_are_read(golden: Golden) -> None:
    store_root = golden.store_root
    topics = read_topic_configs(store_root)
    assert topics.problem == ""
    assert topics.content is not None
    assert topics.content["OrderTopic"] == TopicConfig(4, 4, 6, {})
    assert topics.content["OrderTopic"].perm_text == "RW-"
    assert topics.content["SCHEDULE_TOPIC_XXXX"].write_queue_nums == 18
    committed = {"g4": [50, 48, 47, 59], "g4b": [49, 48, 50, 54]}[golden.name]
    consumers = read_consumer_offsets(store_root)
    assert consumers.content == [
        CommittedOffset("CG", "MyTopic", queue_id, offset)
        for queue_id, offset in enumerate(committed)
    ]
    assert (
        read_delay_offsets(store_root).content
        == {"g4": {1: 41, 2: 15}, "g4b": {1: 35, 2: 3}}[golden.name]
    )


@stores("g4b")
def test_a_backup_holds_the_previous_version(golden: Golden, tmp_path: Path) -> None:
    backup = (golden.store_root / "config/delayOffset.json.bak").read_bytes()
    write(tmp_path, "delayOffset.json.bak", backup)
    file = read_delay_offsets(tmp_path)
    assert file.content == {1: 35, 2: 0}
    assert file.read_from == tmp_path / "config/delayOffset.json.bak"
    assert "delayOffset.json is missing; read from delayOffset.json.bak" in file.problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"t":{0:12,1:5}}', {"t": {"0": 12, "1": 5}}),
        ("{-1 : 2 ,\n7:[3,{4:5}]}", {"-1": 2, "7": [3, {"4": 5}]}),
        (r'{"a{1:2,3:4}\",5:":{6:"7,8:9"}}', {'a{1:2,3:4}",5:': {"6": "7,8:9"}}),
        ("{}", {}),
    ],
)
def test_integer_keys_need_no_quotes(text: str, value: object) -> None:
    assert parse_fastjson(text) == value
    assert parse_fastjson(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("torn", "words"),
    [
        (b"", "torn (empty)"),
        (bytes(4096), "torn (its 4096 bytes are blank)"),
        (OFFSETS[:-5].encode(), "torn ("),
        (b"\xff\xfe", "torn ("),
        (b"[" * 100_000, "torn ("),
        (b"[]", "not as a broker writes it (it is not an object)"),
        (b'{"offsetTable":[]}', "not as a broker writes it (offsetTable is not an object)"),
        (b'{"offsetTable":{"T@G":{0:"x"}}}', "not as a broker writes it (T@G holds 'x'"),
    ],
)
def test_a_torn_file_is_reported_and_read_from_its_backup(
    tmp_path: Path, torn: bytes, words: str
) -> None:
    write(tmp_path, "consumerOffset.json", torn)
    without = read_consumer_offsets(tmp_path)
    assert (without.content, without.read_from) == (None, None)
    assert f"consumerOffset.json is {words}" in without.problem
    assert without.problem.endswith("consumerOffset.json.bak is missing")
    write(tmp_path, "consumerOffset.json.bak", OFFSETS)
    file = read_consumer_offsets(tmp_path)
    assert file.content == COMMITTED
    assert f"consumerOffset.json is {words}" in file.problem
    assert "read from consumerOffset.json.bak" in file.problem


def test_any_cut_of_a_file_is_torn_never_half_read(tmp_path: Path) -> None:
    for end in range(len(OFFSETS)):
        write(tmp_path, "consumerOffset.json", OFFSETS[:end])
        assert read_consumer_offsets(tmp_path).content is None
    write(tmp_path, "consumerOffset.json", OFFSETS)
    assert read_consumer_offsets(tmp_path).content == COMMITTED


def test_lmq_offsets_are_read_where_a_broker_keeps_them(tmp_path: Path) -> None:
    write(tmp_path, "consumerOffset.json", '{"offsetTable":{}}')
    text = OFFSETS[:-1] + ',"lmqOffsetTable":{"%LMQ%a@%LMQ%g":7}}'
    write(tmp_path, "lmqConsumerOffset.json", text)
    lmq = CommittedOffset("%LMQ%g", "%LMQ%a", 0, 7)
    assert read_consumer_offsets(tmp_path, enable_lmq=True).content == [lmq, *COMMITTED]
    assert read_consumer_offsets(tmp_path).content == []


def test_attributes_and_missing_values(tmp_path: Path) -> None:
    write(
        tmp_path,
        "topics.json",
        '{"topicConfigTable":{"T":{"perm":5,"attributes":{"+message.type":"FIFO"}},"U":{}}}',
    )
    topics = read_topic_configs(tmp_path).content
    assert topics == {
        "T": TopicConfig(None, None, 5, {"+message.type": "FIFO"}),
        "U": TopicConfig(None, None, None, {}),
    }
    assert topics["T"].perm_text == "R-X"
    assert topics["U"].perm_text == ""


@stores("g4")
def test_the_timer_files_of_a_real_broker_are_read(golden: Golden) -> None:
    counts = read_timing_counts(golden.store_root)
    assert counts.problem == ""
    assert counts.content == {"OrderTopic": 0, "PayTopic": 0, "MyTopic": 0}
    assert TimerCheckpoint(1795253379000, 7) == read_timer_checkpoint(golden.store_root)


@pytest.mark.parametrize("content", [None, b"", bytes(4096), b"\x01" * 31])
def test_a_missing_blank_or_short_timer_checkpoint_is_none(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        write(tmp_path, "timercheck", content)
    assert read_timer_checkpoint(tmp_path) is None


@pytest.mark.parametrize(
    "text", ['{"timingCount":{"T":1}}', '{"timingCount":{"T":{"count":"1"}}}', '{"timingCount":3}']
)
def test_timer_metrics_that_no_broker_writes_are_a_problem(tmp_path: Path, text: str) -> None:
    write(tmp_path, "timermetrics", text)
    found = read_timing_counts(tmp_path)
    assert found.content is None
    assert "not as a broker writes it" in found.problem
