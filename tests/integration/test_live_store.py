"""A dispatch follows a running broker: its files, its answers, and a broker started on its files.

For each version of RocketMQ, messages of every kind are sent while `reput dispatch` tails the
store; its queues and index are compared with the broker's own, and its answers with the broker's;
then the broker is started on the dispatched files.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from store.output.progress import Progress
from tests.integration.live import SIZES, Stamp, stamps, units, wait_until_equal
from tests.integration.questions import key_questions, own_answer, queue_questions
from tests.integration.servers.reput import Dispatcher, open_store, reput
from tests.integration.servers.rocketmq import QUEUES, RocketMq
from tests.integration.traffic import (
    Sent,
    ask,
    consume,
    delivered,
    max_offsets,
    of_store,
    produce,
    produce_until,
    wait_for_delivery,
)
from tests.support.dispatching import BUILT_DIRECTORIES, assert_same_store

TOPICS = ["TopicA", "TopicB"]
GROUP = "LiveGroup"
FIRST = 500
RECEIVED = 300
BATCHES = 3
REFUSED = 5
SYSTEM_TOPICS = ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"]


@dataclass
class Live:
    """A broker, and the dispatch that followed it to the last message."""

    mq: RocketMq
    dispatcher: Dispatcher
    sent: list[Sent] = field(default_factory=list)
    # The progress records observed while messages were being sent.
    seen: list[Progress] = field(default_factory=list)

    @property
    def output(self) -> Path:
        """The OUTPUT that the dispatch writes."""
        return self.dispatcher.output

    def watch_until(self, is_over: Callable[[], bool]) -> None:
        """Record each new progress record, until `is_over`."""

        def poll() -> bool:
            progress = self.dispatcher.progress
            if progress is not None and progress not in self.seen[-1:]:
                self.seen.append(progress)
            return is_over()

        self.dispatcher.server.wait_until(poll, "some batches and a consumer done")


@pytest.fixture(scope="module", params=["4.8.0", "5.3.3", "5.5.0"])
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    """Send messages of every kind while a dispatch follows, and wait until both are done."""
    directory = tmp_path_factory.mktemp(f"live-{request.param}")
    mq = RocketMq(directory, request.param, SIZES, TOPICS)
    try:
        mq.start()
        live = Live(mq, Dispatcher(mq, directory / "out"))
        live.sent = produce(mq, TOPICS, FIRST)  # a 4.x broker creates its log with a message
        live.dispatcher.start()
        live.dispatcher.wait_for_batch()
        with ThreadPoolExecutor() as pool:
            end = directory / "end-of-sending"
            sending = pool.submit(produce_until, mq, TOPICS, end, first=FIRST)
            receiving = pool.submit(consume, mq, TOPICS[0], GROUP, RECEIVED, refuse=REFUSED)
            try:
                live.watch_until(lambda: len(live.seen) > BATCHES and receiving.done())
            finally:
                end.touch()
            live.sent += sending.result()
            receiving.result()
        wait_for_delivery(mq, live.sent)
        wait_until_equal(mq, live.dispatcher)
        yield live
    finally:
        live.dispatcher.kill()
        mq.kill()


def test_messages_are_dispatched_while_others_are_sent(live: Live) -> None:
    counts = [progress.messages for progress in live.seen]
    assert len(counts) > BATCHES
    assert FIRST <= counts[0] < counts[1] < counts[-1]


def test_queues_and_index_equal_the_brokers(live: Live) -> None:
    assert_same_store(live.output, live.mq.store)
    counts = units(live.output)
    assert {topic: counts[topic] for topic in TOPICS} == delivered(live.sent)
    assert all(counts[topic] > 0 for topic in [*SYSTEM_TOPICS, f"%RETRY%{GROUP}"]), counts
    if live.mq.version >= "5":
        assert counts["rmq_sys_wheel_timer"] > 0
    for kind in ("commitlog", "consumequeue/TopicA/0", "index"):
        assert len(list((live.mq.store / kind).iterdir())) > 1, f"{kind} never rolled"


def test_reads_return_the_brokers_answers(live: Live) -> None:
    questions = [*key_questions(live.sent), *queue_questions(live.mq, TOPICS)]
    answers = ask(live.mq, questions)
    with open_store(live.mq, live.output) as store:
        own = [own_answer(store, question) for question in questions]
    assert own == answers
    found = [a for q, a in zip(questions, answers, strict=True) if q[0] == "key"]
    assert all(found[:-1]), "the key of a sent message was not found"
    assert found[-1] == []


# --- a broker on the dispatched files -------------------------------------------------------------


@dataclass(frozen=True)
class Swapped:
    """A broker that was started on dispatched queues and a dispatched index."""

    live: Live
    before: dict[str, Stamp]  # its files before the start
    after: dict[str, Stamp]  # and when the broker was ready
    log: str  # the broker's output in between


@pytest.fixture(scope="module")
def swapped(live: Live) -> Swapped:
    """Stop both, replace the broker's files with the dispatched ones, and start the broker."""
    mq, output = live.mq, live.output
    live.dispatcher.stop()
    mq.stop_broker()
    assert_same_store(output, mq.store)
    done = reput(mq, "verify", mq.store, "--output", output)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in BUILT_DIRECTORIES:
        shutil.rmtree(mq.store / kind, ignore_errors=True)
        if (output / kind).is_dir():
            shutil.copytree(output / kind, mq.store / kind)
    before, log_size = stamps(mq.store), mq.broker.log.stat().st_size
    mq.start_broker()
    log = mq.broker.log.read_bytes()[log_size:].decode(errors="replace")
    return Swapped(live, before, stamps(mq.store), log)


def test_a_broker_starts_on_dispatched_files_and_rebuilds_nothing(swapped: Swapped) -> None:
    assert swapped.after == swapped.before
    assert "last shutdown normally" in swapped.log
    # The broker logs this when it dispatches a message that is already in its queue.
    assert "build consume queue repeatedly" not in swapped.log
    if swapped.live.mq.version < "5":  # later versions do not log where dispatch resumes
        ends = re.search(r"maxPhysicalPosInLogicQueue=(\d+).* clMaxOffset=(\d+)", swapped.log)
        assert ends is not None, swapped.log[-4000:]
        assert int(ends[1]) == int(ends[2]) > 0


def test_a_consumer_reads_every_message_from_the_first_offset(swapped: Swapped) -> None:
    live = swapped.live
    count = delivered(live.sent)[TOPICS[0]]
    received = {
        (m.queue_id, m.queue_offset): m for m in consume(live.mq, TOPICS[0], "AfterSwap", count)
    }
    ends = max_offsets(live.mq, TOPICS[0])
    assert sorted(received) == [(queue, n) for queue in range(QUEUES) for n in range(ends[queue])]
    with open_store(live.mq, live.output) as store:
        for (queue_id, offset), message in received.items():
            own = store.get_message(TOPICS[0], queue_id, offset, 1).messages
            assert [of_store(m) for m in own] == [message]


def test_the_broker_answers_from_dispatched_files(swapped: Swapped) -> None:
    live = swapped.live
    questions = [*key_questions(live.sent), *queue_questions(live.mq, TOPICS)]
    answers = ask(live.mq, questions)
    with open_store(live.mq, live.output) as store:
        assert [own_answer(store, question) for question in questions] == answers


def test_new_messages_are_appended_at_the_right_offsets(swapped: Swapped) -> None:
    live, mq = swapped.live, swapped.live.mq
    ends = {topic: max_offsets(mq, topic) for topic in TOPICS}
    new = produce(mq, TOPICS, FIRST, first=100_000)
    for topic in TOPICS:
        own = [m for m in new if m.topic == topic and m.is_in_its_queue]
        assert len({(m.queue_id, m.queue_offset) for m in own}) > FIRST // 4
        assert all(m.queue_offset >= ends[topic][m.queue_id] for m in own)
    live.sent += new
    wait_for_delivery(mq, live.sent)
    live.dispatcher.start()
    wait_until_equal(mq, live.dispatcher)
    live.dispatcher.stop()
