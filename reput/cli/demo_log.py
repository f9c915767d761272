"""The demo's writer: a separate process that appends to a commit log as a broker does.

``python -m reput.cli.demo_log STORE SECONDS``. Several topics and queues, tags, keys, client
batches, and delayed messages in the schedule topic.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from store.commitlog.record import NewMessage, make_properties
from store.commitlog.writer import CommitLogWriter, schedule
from store.config import load_config

BROKER_CONF = """\
# The demo's broker: small files, so that the log, the queues and the index roll while you watch.
brokerName=demo
mappedFileSizeCommitLog=1048576
mappedFileSizeConsumeQueue=60000
maxHashSlotNum=5000
maxIndexNum=20000
"""
ORDER_TOPIC, PAYMENT_TOPIC = "OrderTopic", "PaymentTopic"
ORDERS_A_SECOND = 600
_STEPS = ("Created", "Paid", "Shipped")
_ORDER_QUEUES, _PAYMENT_QUEUES = 4, 2
_BURST = 20


def write_log(store_root: Path, seconds: float) -> int:
    """Append messages for some seconds; return how many were written."""
    randoms = random.Random(1)
    count = 0
    with CommitLogWriter(store_root, load_config(store_root)) as writer:
        began = time.monotonic()
        order = 0
        while (now := time.monotonic() - began) < seconds:
            while order < now * ORDERS_A_SECOND:
                count += _write_order(writer, randoms, order)
                order += 1
            time.sleep(_BURST / ORDERS_A_SECOND)
    return count


def _write_order(writer: CommitLogWriter, randoms: random.Random, order: int) -> int:
    """Write the messages of an order: its steps, sometimes a batch of payments or a reminder."""
    key = f"order-{order}"
    for step in _STEPS:
        body = f'{{"order": {order}, "step": "{step}", "cents": {randoms.randrange(100_000)}}}'
        writer.append(
            _message(
                ORDER_TOPIC,
                order % _ORDER_QUEUES,
                body,
                _properties(randoms, tags=step, keys=key),
            )
        )
    written = len(_STEPS)
    if order % 10 == 0:
        queue = order // 10 % _PAYMENT_QUEUES
        parts = [
            _message(
                PAYMENT_TOPIC,
                queue,
                f"part {i} of {key}",
                _properties(randoms, tags="Card", keys=f"{key} part-{i}"),
            )
            for i in range(3)
        ]
        writer.append_batch(parts)
        written += len(parts)
    if order % 25 == 0:
        properties = _properties(randoms, tags="Reminder", keys=key)
        reminder = _message(ORDER_TOPIC, 0, f"remind {key}", properties)
        writer.append(schedule(reminder, 3))
        written += 1
    return written


def _message(topic: str, queue_id: int, body: str, properties: dict[str, str]) -> NewMessage:
    return NewMessage(topic, queue_id, body.encode(), properties)


def _properties(randoms: random.Random, *, tags: str, keys: str) -> dict[str, str]:
    return make_properties(uniq_key=f"{randoms.getrandbits(128):032X}", keys=keys, tags=tags)


if __name__ == "__main__":
    write_log(Path(sys.argv[1]), float(sys.argv[2]))
