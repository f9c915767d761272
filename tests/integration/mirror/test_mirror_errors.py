"""What a mirror says and how it exits where Kafka or the log is not as it should be."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from reput.cli import run
from store.commitlog.commit_log import CommitLog
from store.commitlog.record import NewMessage
from store.commitlog.writer import CommitLogWriter
from store.config import load_config
from store.errors import ConfigError, DamageError, KafkaIOError
from streaming.kafka.cluster import TopicLimits
from streaming.queries.mirror_query import MirrorOptions, prepare_mirror
from streaming.sinks.ordered_sink import StoppedError
from tests.integration.mirror.mirroring import (
    append,
    held,
    make_store,
    messages_of,
    mirror,
    options_for,
    record_of,
    run_here,
)
from tests.integration.servers.kafka import KafkaOptions, KafkaServer

USER, PASSWORD = "reput", "a password"
FILE_SIZE = 262_144
INCOMPRESSIBLE = random.Random(1).randbytes(200_000)
TOPICS = "Orders", "_RETRY_g"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    options = KafkaOptions(
        users={USER: PASSWORD}, properties={"connection.failed.authentication.delay.ms": "50"}
    )
    server = KafkaServer(tmp_path_factory.mktemp("kafka"), options)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make_store(tmp_path / "store", 120)
    return tmp_path / "store"


def run_mirror(capsys: pytest.CaptureFixture[str], store: Path, *arguments: str) -> tuple[int, str]:
    """Run the command; return its exit code and the one line it says."""
    began = time.monotonic()
    code = run(["mirror", str(store), *arguments])
    assert time.monotonic() - began < 60
    said = capsys.readouterr().err.strip()
    assert said.startswith("reput: "), said
    assert "\n" not in said, said
    return code, said


def count_held(kafka: KafkaServer, name: str) -> int:
    found = held(kafka.bootstrap, [f"{name}.{topic}" for topic in TOPICS])
    return sum(map(len, found.values()))


@pytest.mark.parametrize(
    ("address", "code", "part"),
    [
        ("127.0.0.1", 2, "is not HOST:PORT"),
        ("127.0.0.1:99999", 2, "is not HOST:PORT"),
        ("127.0.0.1:1", 6, "Kafka is unreachable at 127.0.0.1:1"),
        ("no-such-host.invalid:9092", 6, "Kafka is unreachable at no-such-host.invalid:9092"),
    ],
)
def test_a_bad_address(
    capsys: pytest.CaptureFixture[str], store: Path, address: str, code: int, part: str
) -> None:
    found = run_mirror(capsys, store, "--kafka-bootstrap", address)
    assert (found[0], part in found[1]) == (code, True), found


def test_a_missing_topic_is_named_and_not_made(
    capsys: pytest.CaptureFixture[str], kafka: KafkaServer, store: Path
) -> None:
    options = MirrorOptions(kafka.bootstrap, name="missing")
    with pytest.raises(ConfigError) as raised:
        mirror(store, options)
    path = store / "commitlog" / f"{0:020d}"
    assert "Kafka has no topic Orders" in str(raised.value)
    assert f"offset 0 of {path}" in str(raised.value)
    (store / "config").mkdir()
    table = {"Orders": {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6}}
    (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    code, said = run_mirror(
        capsys, store, "--kafka-bootstrap", kafka.bootstrap, "--topic", "Orders"
    )
    assert (code, "no topic Orders" in said) == (2, True), said
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    assert "Orders" not in admin.list_topics()
    admin.close()


def test_wrong_credentials_and_protocols(
    capsys: pytest.CaptureFixture[str], kafka: KafkaServer, store: Path, tmp_path: Path
) -> None:
    bootstrap = ("--kafka-bootstrap", kafka.sasl_bootstrap)
    file = tmp_path / "client.properties"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={login} username="{USER}" password="wrong";\n'
    )
    code, said = run_mirror(capsys, store, *bootstrap, "--kafka-properties", str(file))
    assert (code, "user name and password right" in said) == (2, True), said
    assert "wrong" not in said
    code, said = run_mirror(capsys, store, *bootstrap)
    assert (code, "is security.protocol right? It is PLAINTEXT" in said) == (2, True), said
    code, said = run_mirror(capsys, store, *bootstrap, "--kafka-property", "security.protocol=SSL")
    assert (code, "security.protocol" in said) == (2, True), said


def test_the_right_credentials(kafka: KafkaServer, store: Path) -> None:
    properties = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    options = options_for(kafka.sasl_bootstrap, "sasl", properties=properties)
    assert mirror(store, options).sink.position.messages == 120
    assert count_held(kafka, "sasl") == 120


def test_a_position_topic_that_forgets_is_refused(kafka: KafkaServer, store: Path) -> None:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.create_topics({"forgets": {"num_partitions": 1}}, wait_for_metadata=True)
    admin.close()
    with pytest.raises(ConfigError, match=r"forgets has cleanup\.policy=delete"):
        mirror(store, options_for(kafka.bootstrap, "f", position_topic="forgets"))


def append_large(store: Path, size: int) -> None:
    """Append a message that does not get smaller, and some more."""
    body = INCOMPRESSIBLE[:size]
    with CommitLogWriter(store, load_config(store)) as writer:
        writer.append(NewMessage("Orders", 0, body))
    append(store, 30, 200)


@pytest.mark.parametrize("who", ["client", "topic", "broker"])
def test_a_message_that_is_too_large(kafka: KafkaServer, store: Path, who: str) -> None:
    append_large(store, 150_000)
    messages = messages_of(store, load_config(store))
    large = next(m for m in messages if len(m.body) == 150_000)
    name = f"large-{who}"
    options = options_for(kafka.bootstrap, name)
    if who == "client":
        options = replace(options, properties={"max.request.size": "100000"})
    else:
        settings = {**options.creation.settings, "max.message.bytes": "100000"}
        options = replace(options, creation=replace(options.creation, settings=settings))
    prepared = prepare_mirror(store, options)
    if who == "broker":  # nobody may tell a client what the limit is
        prepared.sink._link.router._cluster.limits = (  # type: ignore[method-assign]
            lambda _topic: TopicLimits(1_048_588, "")
        )
    with pytest.raises(ConfigError) as raised:
        run_here(prepared, chunk_bytes=4_000)
    prepared.close()
    said = str(raised.value)
    assert f"offset {large.commit_log_offset} of " in said
    assert f"{large.commit_log_offset // FILE_SIZE * FILE_SIZE:020d}" in said
    assert f"topic {name}.Orders" in said
    setting = {"client": "max.request.size", "topic": "max.message.bytes", "broker": "max"}[who]
    assert setting in said
    assert prepared.sink.position.commit_log_offset <= large.commit_log_offset
    before = prepared.sink.position.messages
    assert count_held(kafka, name) == before
    if who != "broker":  # there it is found when more than its stretch has been sent
        assert before > 100
    # With the limit raised it goes on, and nothing is lost or there twice.
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    if who != "client":
        resource = ConfigResource(
            ConfigResourceType.TOPIC, f"{name}.Orders", {"max.message.bytes": "1000000"}
        )
        admin.alter_configs([resource])
    admin.close()
    mirror(store, options_for(kafka.bootstrap, name))
    found = held(kafka.bootstrap, [f"{name}.{topic}" for topic in TOPICS])
    assert Counter(r for p in found.values() for r in p) == Counter(map(record_of, messages))


def test_many_messages_fit_whatever_the_limits_are(kafka: KafkaServer, store: Path) -> None:
    with CommitLogWriter(store, load_config(store)) as writer:
        for n in range(100):  # more than a request holds, and not to be made smaller
            writer.append(NewMessage("Orders", 0, INCOMPRESSIBLE[n * 1500 : (n + 1) * 1500]))
    options = options_for(kafka.bootstrap, "tight", properties={"max.request.size": "20000"})
    mirror(store, options)
    assert count_held(kafka, "tight") == 220


def test_a_kafka_that_ends_is_waited_for_and_then_told(tmp_path: Path, store: Path) -> None:
    server = KafkaServer(tmp_path / "kafka")
    server.start()
    try:
        options = options_for(
            server.bootstrap,
            "away",
            transaction_bytes=5_000,
            properties={"delivery.timeout.ms": "6000", "request.timeout.ms": "3000"},
            wait_for_kafka_seconds=5,
        )
        first = prepare_mirror(store, options)
        batches = []

        def kill() -> None:
            batches.append(1)
            if len(batches) == 2:
                server.kill()

        began = time.monotonic()
        with pytest.raises(KafkaIOError):
            run_here(first, max_bytes=2_000, after_batch=kill)
        assert time.monotonic() - began < 60
        began = time.monotonic()
        first.close()
        assert time.monotonic() - began < 20
        server.start()
        mirror(store, options)
        assert count_held(server, "away") == 120
    finally:
        server.kill()


def test_a_kafka_that_comes_back_in_time_is_gone_on_with(tmp_path: Path, store: Path) -> None:
    server = KafkaServer(tmp_path / "kafka")
    server.start()

    def start_again() -> None:
        time.sleep(2)
        server.start()

    back = threading.Thread(target=start_again)
    try:
        properties = {"delivery.timeout.ms": "6000", "request.timeout.ms": "3000"}
        options = options_for(
            server.bootstrap, "back", transaction_bytes=5_000, properties=properties
        )
        prepared = prepare_mirror(store, options)
        batches = []

        def restart() -> None:
            batches.append(1)
            if len(batches) == 2:
                server.kill()
                back.start()

        run_here(prepared, max_bytes=2_000, after_batch=restart)
        prepared.close()
        assert len(batches) > 2
        assert prepared.sink.position.messages == 120
        assert count_held(server, "back") == 120
    finally:
        back.join()
        server.kill()


@pytest.mark.parametrize("when", ["writing", "waiting"])
def test_a_stop_while_kafka_is_away_takes_less_than_ten_seconds(
    tmp_path: Path, store: Path, when: str
) -> None:
    append(store, 4_000, 120)
    server = KafkaServer(tmp_path / "kafka")
    server.start()
    try:
        options = options_for(
            server.bootstrap,
            "stopped",
            transaction_bytes=5_000,
            properties={"request.timeout.ms": "2000", "delivery.timeout.ms": "5000"},
        )
        prepared = prepare_mirror(store, options)
        is_away, failures = threading.Event(), list[BaseException]()

        def kill() -> None:
            if not is_away.is_set():
                server.kill()
                is_away.set()

        def work() -> None:
            try:
                run_here(prepared, max_bytes=2_000, after_batch=kill)
            except BaseException as e:  # noqa: BLE001 - compared below
                failures.append(e)

        worker = threading.Thread(target=work)
        worker.start()
        assert is_away.wait(60)
        time.sleep(1 if when == "writing" else 10)  # 5 s is delivery.timeout.ms
        began = time.monotonic()
        prepared.close()
        worker.join(60)
        assert time.monotonic() - began < 10
        assert [type(e) for e in failures] == [StoppedError]
        server.start()
        mirror(store, options)
        assert count_held(server, "stopped") == 4_120
    finally:
        server.kill()


def test_damage_is_told_after_all_before_it_is_mirrored(kafka: KafkaServer, store: Path) -> None:
    append(store, 3_000, 120)
    messages = messages_of(store, load_config(store))
    victim = next(m for m in messages if m.commit_log_offset > FILE_SIZE + 10_000)
    path = store / "commitlog" / f"{FILE_SIZE:020d}"
    with path.open("r+b") as f:
        f.seek(victim.commit_log_offset - FILE_SIZE + 4)
        f.write(b"\0\0\0\0")
    options = options_for(kafka.bootstrap, "damage")
    with pytest.raises(DamageError) as raised:
        mirror(store, options)
    assert (raised.value.path, raised.value.offset) == (path, victim.commit_log_offset)
    before = [m for m in messages if m.commit_log_offset < victim.commit_log_offset]
    assert count_held(kafka, "damage") == len(before)
    skipping = mirror(store, replace(options, fail_on_data_loss=False))
    assert [d.begin for d in skipping.sink.lost] == [victim.commit_log_offset]
    assert count_held(kafka, "damage") == len(messages) - 1
    assert mirror(store, options).sink.counts.messages == 0  # what was skipped is behind it


def test_what_has_expired_is_refused_or_skipped(kafka: KafkaServer, store: Path) -> None:
    append(store, 4_000, 120)
    options = options_for(kafka.bootstrap, "expired")
    prepared = prepare_mirror(store, options)
    with pytest.raises(RuntimeError):
        run_here(prepared, max_bytes=50_000, after_batch=_stop)
    prepared.close()
    done = prepared.sink.position
    (store / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(DamageError) as raised:
        mirror(store, options)
    assert f"offsets {done.commit_log_offset} to {FILE_SIZE} are lost" in str(raised.value)
    skipping = mirror(store, replace(options, fail_on_data_loss=False))
    assert [(d.begin, d.end) for d in skipping.sink.lost] == [(done.commit_log_offset, FILE_SIZE)]
    left = messages_of(store, load_config(store))
    assert count_held(kafka, "expired") == done.messages + len(left)


def _stop() -> None:
    raise RuntimeError("enough")


def test_a_log_that_was_cut_is_refused_unless_one_says_where_to_go_on(
    kafka: KafkaServer, store: Path
) -> None:
    options = options_for(kafka.bootstrap, "cut")
    mirror(store, options)
    messages = messages_of(store, load_config(store))
    cut = messages[100].commit_log_offset
    path = store / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
    with pytest.raises(DamageError, match=r"mirrored last.*cannot be taken back") as raised:
        mirror(store, options)
    assert raised.value.offset == messages[-1].commit_log_offset
    append(store, 30, 500)
    with pytest.raises(DamageError, match="mirrored last"):
        mirror(store, options)
    with pytest.raises(ConfigError, match="another start"):
        mirror(store, replace(options, from_offset=cut))
    mirror(store, replace(options, from_offset=cut, force_position=True))
    assert count_held(kafka, "cut") == 150
    log = CommitLog([store / "commitlog"], load_config(store))
    assert mirror(store, options).begin == log.max_offset()


def test_another_store_under_the_same_name_is_refused(
    kafka: KafkaServer, store: Path, tmp_path: Path
) -> None:
    options = options_for(kafka.bootstrap, "same")
    mirror(store, options)
    other = tmp_path / "other"
    make_store(other, 500)
    with pytest.raises(ConfigError, match=r"belongs to .*store.*use another --name"):
        mirror(other, options)
