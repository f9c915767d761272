"""The messages that the clients in ``java/`` send and receive, and a broker's view of them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from store.commitlog.message import Message
from tests.integration.servers import remoting
from tests.integration.servers.processes import wait_for
from tests.integration.servers.rocketmq import BROKER_NAME, QUEUES, RocketMq

# A delayed message takes a second or two to be delivered, a transaction's end a little longer.
DELIVERY_SECONDS = 120
CONSUME_SECONDS = 150
MESSAGES_A_SECOND = 30


@dataclass(frozen=True)
class Sent:
    """A message as its producer sees it; the queue is in the first topic it was sent to."""

    kind: str
    topic: str
    queue_id: int
    queue_offset: int
    uniq_key: str
    keys: str
    tags: str
    body: bytes

    @property
    def is_in_its_queue(self) -> bool:
        """Whether queue and offset are known; if not, the message went to another topic first."""
        return self.kind not in ("delayed", "timed", "commit", "rollback")

    @property
    def is_delivered(self) -> bool:
        """Whether it is ever delivered to a queue of its own topic."""
        return self.kind != "rollback"


@dataclass(frozen=True)
class Received:
    """A message as a consumer or an admin client sees it."""

    topic: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    size: int
    store_timestamp: int
    tags: str
    keys: str
    body: bytes


def of_store(message: Message) -> Received:
    """Return a message that this project read in the form of one that a client received."""
    return Received(
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.commit_log_offset,
        message.size,
        message.store_timestamp,
        message.tags or "",
        message.keys or "",
        message.body,
    )


def produce(mq: RocketMq, topics: Iterable[str], count: int, *, first: int = 0) -> list[Sent]:
    """Send messages of every kind, numbered from ``first``."""
    arguments = [mq.name_address, ",".join(topics), count, 1 + first, 0, first]
    return _all_sent(mq.java("Produce", *arguments))


def produce_until(mq: RocketMq, topics: Iterable[str], end: Path, *, first: int = 0) -> list[Sent]:
    """Send messages of every kind, a few dozen per second, until the file ``end`` exists."""
    a_second = [MESSAGES_A_SECOND, 1 + first, 1000]
    arguments = [mq.name_address, ",".join(topics), *a_second, first, str(end)]
    return _all_sent(mq.java("Produce", *arguments))


def consume(mq: RocketMq, topic: str, group: str, count: int, *, refuse: int = 0) -> list[Received]:
    """Consume ``count`` messages as a new group; have ``refuse`` of them redelivered."""
    arguments = [mq.name_address, topic, group, count, refuse, CONSUME_SECONDS]
    return list(_received(mq.java("Consume", *arguments).splitlines()))


def ask(mq: RocketMq, questions: list[list[str | int]]) -> list[list[Received] | int]:
    """Query a broker as `mqadmin` does; an answer is a list of messages or a number."""
    text = "".join("\t".join(map(str, question)) + "\n" for question in questions)
    answers: list[list[Received] | int] = []
    lines: list[str] = []
    for line in mq.java("Ask", mq.name_address, BROKER_NAME, text=text).splitlines():
        if line != "end":
            lines.append(line)
            continue
        is_number = len(lines) == 1 and lines[0].startswith("number\t")
        answers.append(int(lines[0].split("\t")[1]) if is_number else list(_received(lines)))
        lines = []
    assert len(answers) == len(questions)
    return answers


def max_offsets(mq: RocketMq, topic: str) -> list[int]:
    """Return the broker's max offset of each queue of a topic."""
    return [remoting.max_offset(mq.broker_address, topic, queue) for queue in range(QUEUES)]


def delivered(sent: Iterable[Sent]) -> Counter[str]:
    """Count the messages that are delivered to each topic."""
    return Counter(message.topic for message in sent if message.is_delivered)


def wait_for_delivery(mq: RocketMq, sent: Iterable[Sent]) -> None:
    """Wait until each deliverable message is in its topic, and assert that none is there twice."""
    for topic, count in delivered(sent).items():
        wait_for(
            lambda topic=topic, count=count: sum(max_offsets(mq, topic)) >= count,
            f"{count} messages in {topic}",
            DELIVERY_SECONDS,
        )
        assert sum(max_offsets(mq, topic)) == count


def _all_sent(printed: str) -> list[Sent]:
    return [_sent(line.split("\t")) for line in printed.splitlines()]


def _sent(fields: list[str]) -> Sent:
    kind, topic, queue_id, queue_offset, uniq_key, keys, tags, body = fields
    place = int(queue_id), int(queue_offset)
    return Sent(kind, topic, *place, uniq_key, keys, tags, bytes.fromhex(body))


def _received(lines: Iterable[str]) -> Iterator[Received]:
    for line in lines:
        what, topic, *numbers, tags, keys, body = line.split("\t")
        assert what == "message", line
        yield Received(topic, *map(int, numbers), tags, keys, bytes.fromhex(body))
