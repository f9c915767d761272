"""``--oversized``: messages larger than Kafka accepts are skipped or diverted, and counted."""

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from reput.cli import run
from store.commitlog.record import NewMessage
from store.commitlog.writer import CommitLogWriter
from store.config import load_config
from store.errors import ConfigError
from streaming.kafka.oversized import OversizedMessage, parse_rule
from streaming.kafka.records import Record as SentRecord
from streaming.queries.mirror_query import MirrorOptions, prepare_mirror
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
from tests.integration.servers.kafka import KafkaServer

NOISE = random.Random(1).randbytes(200_000)
LIMIT = 100_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store of 90 messages, with a too large one after each 30."""
    make_store(tmp_path / "store", 30)
    for n in range(2):
        with CommitLogWriter(tmp_path / "store", load_config(tmp_path / "store")) as writer:
            writer.append(NewMessage("Orders", n, NOISE[: 150_000 + n]))
        append(tmp_path / "store", 30, 100 * n + 100)
    return tmp_path / "store"


def limited(kafka: KafkaServer, name: str, rule: str, limit: int = LIMIT) -> MirrorOptions:
    """Return options that create topics which accept batches of up to ``limit`` bytes."""
    options = options_for(kafka.bootstrap, name, oversized=parse_rule(rule))
    settings = {**options.creation.settings, "max.message.bytes": str(limit)}
    return replace(options, creation=replace(options.creation, settings=settings))


def in_kafka(kafka: KafkaServer, name: str) -> Counter[object]:
    found = held(kafka.bootstrap, [f"{name}.Orders", f"{name}._RETRY_g"])
    return Counter(record for records in found.values() for record in records)


def test_skipped_messages_are_reported_and_counted(kafka: KafkaServer, store: Path) -> None:
    reported: list[OversizedMessage] = []
    options = replace(limited(kafka, "skip", "skip"), on_oversized=reported.append)
    done = mirror(store, options, chunk_bytes=4_000)
    messages = messages_of(store, load_config(store))
    large = [m for m in messages if len(m.body) > LIMIT]
    assert in_kafka(kafka, "skip") == Counter(record_of(m) for m in messages if m not in large)
    assert [m.commit_log_offset for m in reported] == [m.commit_log_offset for m in large]
    position = done.sink.position
    assert (position.messages, position.oversized) == (90, 2)
    append(store, 30, 500)
    assert mirror(store, options).sink.position.oversized == 2
    assert sum(in_kafka(kafka, "skip").values()) == 120


def test_diverted_messages_are_in_the_other_topic(kafka: KafkaServer, store: Path) -> None:
    other = options_for(kafka.bootstrap, "others")
    prepared = prepare_mirror(store, other)
    prepared.sink._link.router.add_target("large", 2, "test")
    prepared.close()
    done = mirror(store, limited(kafka, "divert", "topic:large"))
    messages = messages_of(store, load_config(store))
    large = [record_of(m) for m in messages if len(m.body) > LIMIT]
    small = [record_of(m) for m in messages if len(m.body) <= LIMIT]
    assert in_kafka(kafka, "divert") == Counter(small)
    found = held(kafka.bootstrap, ["large"])
    assert [r for records in found.values() for r in records] == large
    assert (done.sink.position.messages, done.sink.position.oversized) == (92, 2)


def test_a_missing_other_topic_is_refused_at_the_start(kafka: KafkaServer, store: Path) -> None:
    options = MirrorOptions(kafka.bootstrap, name="none", oversized=parse_rule("topic:none"))
    with pytest.raises(ConfigError, match="--oversized: Kafka has no topic none"):
        prepare_mirror(store, options)


def test_a_message_too_large_for_the_other_topic_fails(kafka: KafkaServer, store: Path) -> None:
    options = limited(kafka, "both", "topic:both.other")
    with pytest.raises(ConfigError, match=r"too large .* for topic both\.other too"):
        mirror(store, options)
    assert sum(in_kafka(kafka, "both").values()) == 30


def test_a_message_that_only_kafka_finds_too_large_is_skipped(
    kafka: KafkaServer, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size before sending is computed; here it is computed as too small."""
    prepared = prepare_mirror(store, limited(kafka, "found", "skip", 145_000))
    sizes, real = prepared.sink._link.sizes, prepared.sink._link.sizes._excess

    def blind(record: SentRecord) -> str:
        return real(record) if record.commit_log_offset in sizes._refused else ""

    monkeypatch.setattr(sizes, "_excess", blind)
    try:
        run_here(prepared, chunk_bytes=4_000)
    finally:
        prepared.close()
    position = prepared.sink.position
    assert (position.messages, position.oversized) == (90, 2)
    assert sum(in_kafka(kafka, "found").values()) == 90


def test_many_small_messages_fit_topics_with_a_small_limit(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    make_store(tmp_path, 30)
    with CommitLogWriter(tmp_path, load_config(tmp_path)) as writer:
        for n in range(120):
            writer.append(NewMessage("Orders", 0, NOISE[n * 1_500 : (n + 1) * 1_500]))
    mirror(tmp_path, limited(kafka, "small", "fail", 20_000))
    assert sum(in_kafka(kafka, "small").values()) == 150


def test_the_command_reports_what_it_skipped(
    kafka: KafkaServer, store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = run(
        [
            "mirror", str(store), "--kafka-bootstrap", kafka.bootstrap, "--name", "command",
            "--topic-prefix", "command.", "--create-topics", "--topic-config", "retention.ms=-1",
            "--topic-config", f"max.message.bytes={LIMIT}", "--oversized", "skip",
            "--available-now", "--json", "--master", "local[1]",
        ]
    )  # fmt: skip
    said, errors = capfd.readouterr()
    assert code == 0, errors
    events = [json.loads(line) for line in said.splitlines()]
    skipped = [e for e in events if e["event"] == "oversized"]
    large = [m for m in messages_of(store, load_config(store)) if len(m.body) > LIMIT]
    assert [e["commit_log_offset"] for e in skipped] == [m.commit_log_offset for m in large]
    assert events[-1]["oversized_ever"] == 2
