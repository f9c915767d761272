"""The stores that the console's tests show: a shop's, and one full of hostile content."""

import json
from dataclasses import dataclass
from pathlib import Path

from store.commitlog.record import NewMessage, make_properties
from store.commitlog.writer import schedule
from store.config import StoreConfig, load_config
from tests.support.bulk_writer import BulkWriter
from tests.support.dispatching import HastyDisk, dispatch_all

CONF = """\
brokerName=shop
mappedFileSizeCommitLog=1048576
mappedFileSizeConsumeQueue=60000
maxHashSlotNum=5000
maxIndexNum=20000
"""
ORDERS, PAYMENTS = "OrderTopic", "PaymentTopic"
GROUP = "payment-service"
STEPS = ("Created", "Paid", "Shipped")
QUEUES = 4

# Ends attributes and tags, runs in handlers, and reverses what follows it.
SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(2)>"
QUOTES = "\"'><svg onload=alert(3)>"
BIDI = "evil\u202etxt.exe"
CONTROLS = "\x1b[31mred\x07 \x00"


@dataclass(frozen=True)
class Shown:
    """A store, and the OUTPUT that its dispatch builds."""

    store_root: Path
    output: Path
    config: StoreConfig

    def dispatch(self) -> None:
        """Dispatch the current log."""
        dispatch_all(self.store_root, self.output, self.config)

    def writer(self) -> BulkWriter:
        """Open a writer at the end of the log."""
        return BulkWriter(self.store_root, self.config, disk=HastyDisk())


def make_shown(directory: Path, output_name: str = "output", conf: str = CONF) -> Shown:
    """Make an empty store."""
    store_root = directory / "store"
    (store_root / "commitlog").mkdir(parents=True)
    (store_root / "config").mkdir()
    (store_root / "broker.conf").write_text(conf)
    return Shown(store_root, directory / output_name, load_config(store_root))


def order(number: int, *, text: str = "") -> NewMessage:
    """Return a message of an order."""
    step = STEPS[number % len(STEPS)]
    body = json.dumps({"order": number, "step": step, "cents": number * 37 % 10_000, "note": text})
    properties = make_properties(
        uniq_key=f"7F0000011A2B18B4AAC2{number:012X}", keys=f"order-{number}", tags=step
    )
    return NewMessage(
        ORDERS, number % QUEUES, body.encode(), {**properties, "region": ("eu", "us")[number % 2]}
    )


def make_shop(directory: Path, orders: int = 2000) -> Shown:
    """Write and dispatch a shop's messages, with groups that lag and delayed messages."""
    shown = make_shown(directory)
    with shown.writer() as writer:
        for number in range(orders):
            writer.append(order(number, text="declined" if number % 100 == 0 else ""))
            if number % 10 == 0:
                properties = make_properties(keys=f"order-{number}", tags="Card")
                writer.append(NewMessage(PAYMENTS, number // 10 % 2, b"\x00\x01paid", properties))
            if number % 50 == 0:
                writer.append(schedule(order(number, text="reminder"), 3))
        for kind in ("%RETRY%", "%DLQ%"):
            writer.append(NewMessage(kind + GROUP, 0, b'{"order": 7}', make_properties(keys="k")))
    shown.dispatch()
    _write_config(shown.store_root, orders)
    return shown


def _write_config(store_root: Path, orders: int) -> None:
    end = orders // QUEUES
    offsets = {
        f"{ORDERS}@{GROUP}": {queue: end - 20 * (queue + 1) for queue in range(QUEUES)},
        f"{ORDERS}@audit": dict.fromkeys(range(QUEUES), end),
        f"{PAYMENTS}@{GROUP}": {0: 10},
    }
    topic = {"perm": 6, "readQueueNums": QUEUES, "writeQueueNums": QUEUES}
    files = {
        "topics.json": {"topicConfigTable": {ORDERS: topic}},
        "consumerOffset.json": {"offsetTable": offsets},
        "delayOffset.json": {"offsetTable": {3: 1}},
    }
    for name, content in files.items():
        (store_root / "config" / name).write_text(json.dumps(content))


def make_hostile(directory: Path) -> Shown:
    """Write and dispatch messages whose every text tries to run or to mislead."""
    shown = make_shown(directory, output_name=f"output {IMAGE}")
    names = (IMAGE, QUOTES.replace("/", ""), "%2e%2e", "..%2f", BIDI)
    bodies = (SCRIPT, IMAGE, QUOTES, BIDI, "line\nnext\t" + CONTROLS.replace("\x00", ""))
    with shown.writer() as writer:
        for number, (topic, body) in enumerate(zip(names, bodies, strict=True)):
            properties = make_properties(
                uniq_key=f"{SCRIPT}{number}", keys=f"{IMAGE} {QUOTES}", tags=SCRIPT
            )
            properties |= {SCRIPT: IMAGE, "bidi": BIDI, "quotes": QUOTES, "escape": "\x1b[31m"}
            writer.append(NewMessage(topic, 0, body.encode(), properties))
        writer.append(NewMessage("plain", 0, json.dumps({SCRIPT: [IMAGE, BIDI]}).encode()))
        writer.append(NewMessage("plain", 0, bytes(range(256)) * 40))
    shown.dispatch()
    offsets = {f"{IMAGE}@{SCRIPT}": {0: 0}}
    text = json.dumps({"offsetTable": offsets})
    (shown.store_root / "config" / "consumerOffset.json").write_text(text)
    return shown
