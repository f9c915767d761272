"""A broker that holds messages back is killed: ``reput pending`` says what it then does."""

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from store.broker_files import read_timer_checkpoint
from tests.integration.servers.processes import wait_for
from tests.integration.servers.remoting import has_producer, set_broker_option
from tests.integration.servers.reput import rows
from tests.integration.servers.rocketmq import RocketMq
from tests.store.pending.outcomes import OUTCOMES, TOPIC, check_outcomes

COUNT = 2
LATER_MS = 20_000
TIMED = 5 * COUNT  # messages of Hold.java that go through the timer wheel, cancellations included
TIMEOUT = "transactionTimeOut"  # how old a half message is when the broker first checks it
PRODUCERS = "HoldTransactions"  # the group in Hold.java
OPTIONS = {
    "messageDelayLevel": "1s 12s 1h",
    # The broker writes a rollback within 3 s of the answer, and gives a message up at the fourth
    # check, whether or not an answer is on its way.
    "transactionCheckInterval": "5000",
    TIMEOUT: "1000",
    "transactionCheckMax": "3",
    "timerWheelEnable": "true",
    # No roll: a broker that is down when it had to roll a message ignores its cancellation.
    "timerRollWindowSlot": "600",
}


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[RocketMq]:
    """Start a broker of the default version."""
    mq = RocketMq(tmp_path, options=OPTIONS, topics=[TOPIC])
    try:
        mq.start()
        yield mq
    finally:
        mq.kill()


def test_pending_says_what_a_killed_broker_then_does(mq: RocketMq, tmp_path: Path) -> None:
    sent, end = tmp_path / "sent", tmp_path / "end"
    arguments = [mq.name_address, TOPIC, COUNT, LATER_MS, "topic", str(end), str(sent)]
    with ThreadPoolExecutor(1) as pool:
        producer = pool.submit(mq.java, "Hold", *arguments)
        try:
            wait_for(lambda: sent.exists() or producer.done(), "all sent")
            # Until then a restarted broker ignores a cancellation whose message is due.
            wait_for(lambda: in_wheel(mq.store) >= TIMED, "in the timer wheel")
            mq.broker.kill()
            shutil.copytree(mq.store, tmp_path / "killed")
            killed = pending(mq, tmp_path / "killed")
            # The broker checks nothing before the producer that answers is back.
            mq.set_options({TIMEOUT: "3600000"})
            mq.start_broker()
            wait_for(lambda: has_producer(mq.broker_address, PRODUCERS), "connected again")
            set_broker_option(mq.broker_address, TIMEOUT, OPTIONS[TIMEOUT])
            later: dict[str, dict[str, Any]] = {}

            def is_settled() -> bool:
                later.update(pending(mq, mq.store))
                time.sleep(1)
                return sum(row["state"] == "waiting" for row in later.values()) == 2 * COUNT and (
                    all(row["state"] != "overdue" for row in later.values())
                )

            wait_for(is_settled, "every message but those due in an hour delivered or ended")
        finally:
            end.touch()
        lines = producer.result().splitlines()
    kinds = {key: kind for kind, key in (line.split("\t") for line in lines)}
    assert OUTCOMES.keys() == set(kinds.values())
    check_outcomes(kinds, killed, later)


def in_wheel(store: Path) -> int:
    """Return how many timer messages are in the wheel, by what the broker has flushed."""
    checkpoint = read_timer_checkpoint(store)
    return checkpoint.queue_offset if checkpoint is not None else 0


def pending(mq: RocketMq, store: Path) -> dict[str, dict[str, Any]]:
    """Return what the command prints for each message, by unique key."""
    return {row["uniq_key"]: row for row in rows(mq, "pending", store, "--all")}
