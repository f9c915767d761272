"""A broker is killed and restarted while a dispatch keeps running.

A broker's files after its own crash are no reference: its recovery leaves stale units and indexes
keys twice. The reference is what the same broker rebuilds after both directories are deleted.
"""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.live import SIZES, wait_until_equal, wait_until_quiet
from tests.integration.servers.processes import START_SECONDS
from tests.integration.servers.reput import Dispatcher, reput
from tests.integration.servers.rocketmq import RocketMq
from tests.integration.traffic import produce, produce_until

TOPICS = ["TopicA", "TopicB"]
KILLS = 2
# By default, 5.4 and later rebuild queues from only the last ten log files.
ALL_FILES = {"commitLogRecoverMaxNum": "2147483647"}


@pytest.fixture(params=["4.9.4", "5.5.0"])
def mq(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RocketMq]:
    """Start a broker and send it some messages."""
    options = SIZES | (ALL_FILES if request.param >= "5.4" else {})
    mq = RocketMq(tmp_path, request.param, options, TOPICS)
    try:
        mq.start()
        produce(mq, TOPICS, 100)
        yield mq
    finally:
        mq.kill()


def test_a_dispatch_survives_kills_of_its_broker(mq: RocketMq, tmp_path: Path) -> None:
    dispatcher = Dispatcher(mq, tmp_path / "out")
    dispatcher.start()
    try:
        dispatcher.wait_for_batch()
        for number in range(1, 1 + KILLS):
            kill_broker_under_load(mq, dispatcher, number)
            mq.start_broker()
        produce(mq, TOPICS, 100, first=50_000)
        wait_until_quiet(mq, dispatcher)
        mq.stop_broker()
        for kind in ("consumequeue", "index"):
            shutil.rmtree(mq.store / kind)
        mq.start_broker()
        wait_until_equal(mq, dispatcher)
        dispatcher.stop()
    finally:
        dispatcher.kill()
    done = reput(mq, "verify", mq.store, "--output", dispatcher.output)
    assert done.returncode == 0, done.stdout + done.stderr


def kill_broker_under_load(mq: RocketMq, dispatcher: Dispatcher, number: int) -> None:
    """Kill the broker while messages are sent and dispatched."""
    before = dispatcher.offset
    with ThreadPoolExecutor(1) as pool:
        never = mq.directory / "never"
        sending = pool.submit(produce_until, mq, TOPICS, never, first=1000 * number)
        dispatcher.wait_for_batch(before)
        mq.kill_broker()
        assert sending.exception(START_SECONDS) is not None, "the kill came after the last message"
    assert (mq.store / "abort").exists()
    assert dispatcher.server.is_running, dispatcher.server.tail()
