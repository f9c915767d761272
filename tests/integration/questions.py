"""Questions that a broker and a store of this project answer alike."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, cast

from store.reads.message_store import MessageStore
from tests.integration.servers.rocketmq import RocketMq
from tests.integration.traffic import Received, Sent, max_offsets, of_store

Question = list[str | int]


def key_questions(sent: list[Sent]) -> list[Question]:
    """Ask for keys and unique keys of messages of each kind, and for a key that none has."""
    kinds: dict[str, list[Sent]] = defaultdict(list)
    for message in sent:
        if message.is_delivered:
            kinds[message.kind].append(message)
    some = [message for messages in kinds.values() for message in messages[:3]]
    keys: list[Question] = [["key", m.topic, key] for m in some for key in m.keys.split()]
    # 5.x clients store a batch under a different unique key from the one they report.
    unique: list[Question] = [["uniq", m.topic, m.uniq_key] for m in some if m.kind != "batch"]
    return [*unique, *keys, ["key", sent[0].topic, "no-such-key"]]


def queue_questions(mq: RocketMq, topics: Iterable[str]) -> list[Question]:
    """Ask for bounds, messages at offsets and offsets at times of each queue."""
    questions: list[Question] = []
    for topic in topics:
        for queue_id, end in enumerate(max_offsets(mq, topic)):
            queue: Question = [topic, queue_id]
            questions += [["max", *queue], ["min", *queue]]
            questions += [["offset", *queue, offset] for offset in (0, end // 2, end - 1)]
            questions += [["time", *queue, 0]]
            if mq.version >= "5":  # docs/reads.md describes the answers of earlier versions
                questions += [["time", *queue, 4_000_000_000_000]]
    return questions


def own_answer(store: MessageStore, question: Question) -> list[Received] | int:
    """Answer a question from the dispatched files."""
    what, topic, *rest = cast("list[Any]", question)
    if what == "key":
        found = store.query_message(topic, rest[0]).messages
        return [of_store(message) for message in found]
    if what == "uniq":  # a broker's client keeps the first message it receives
        return [of_store(store.query_message(topic, rest[0], 1).messages[0])]
    if what == "offset":
        return [of_store(m) for m in store.get_message(topic, rest[0], rest[1], 1).messages]
    if what == "time":
        return store.offset_in_queue_by_time(topic, rest[0], rest[1])
    bound = {"max": store.max_offset_in_queue, "min": store.min_offset_in_queue}[what]
    return bound(topic, rest[0])
