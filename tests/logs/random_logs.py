"""Random messages as a broker might hold them, for `logs.build_log`: ordinary ones and odd ones.

One generator serves seeded runs (`random_messages(random.Random(7), 100)`) and hypothesis
(`message_lists()`, which lends it a Random whose draws shrink).
"""

import struct
from collections import Counter
from dataclasses import dataclass, replace
from random import Random

from hypothesis import strategies as st

from tests.logs.build import (
    COMMIT,
    PREPARED,
    ROLLBACK,
    SCHEDULE_TOPIC,
    Batch,
    Message,
    encode_properties,
)

Pairs = list[tuple[str | bytes, str | bytes]]

TOPICS = [
    "TopicTest",
    "OrderTopic",
    "TopicAa",
    "TopicBB",  # Hashes like TopicAa, so all their keys collide.
    "主题-topic",
    "%RETRY%group",
    "rmq_sys_wheel_timer",
    "t" * 127,
]
LONG_TOPICS = ["t" * 128, "LongTopic_" + "x" * 150, "%RETRY%" + "g" * 240, "长" * 20 + "t" * 120]
MALFORMED_TOPICS = [b"bad\xff", b"bad\xed\xa0\x80"]

SURROGATE = b"\xed\xa0\x80"
ODD_TEXTS: list[str | bytes] = [
    "polygenelubricants",  # Hashes to the smallest int.
    "AaAa",
    "BBBB",
    "AaBB",
    "标签😀",
    "𝒯𝒶𝑔",
    "é\u0301\u00a0\ufeff",
    "a\tb",
    "\t",
    "\x00",
    "#",
    "T#TagA",
    "*",
    "A || B",
    SURROGATE,
    b"\xed\xa0\xbd\xed\xb8\x80",
    b"cut\xed\xa0",
    b"\xff\xfe",
    b"\xc0\x80",
    b"\xe4\xb8",
    b"\xf0\x9f\x98",
    b"\xf5\x80\x80\x80",
    b"\xe0\x80\x80ok",
]
TAGS: list[str | bytes] = ["TagA", "TagB", "TagC", "TagA", "TagB", "TagA||TagB", " ", "a b"]
KEYS: list[str | bytes] = ["k1", "k2", "k1 k2", "a  b a", " lead", "trail ", "  ", "x\ty z"]
DELAY_LEVELS = ["1", "2", "3", "17", "18", "19", "99", "0", "-1", "+4", "007", "2147483647"]
EXTREME_INTS = [0, 1, -1, 2**31 - 1, 1 - 2**31, -(2**31)]
LMQ_NAMES = ["%LMQ%a", "%LMQ%b", "%LMQ%device-1", "%LMQ%主题", "plain"]
HOSTS = [b"\x7f\x00\x00\x01", bytes([192, 168, 255, 254]), bytes(15) + b"\x01", b"\xfe\x80" * 8]


@dataclass(frozen=True)
class Mix:
    """What kinds of messages a generator may make."""

    version: tuple[int, ...] = (5, 3, 3)
    multi_dispatch: bool = True
    malformed_topics: bool = False
    queues_max: int = 3
    huge_size: int = 3000


class Generator:
    """Draws messages one by one and keeps what a broker keeps: queue offsets and a clock."""

    def __init__(self, random: Random, mix: Mix) -> None:
        self.random = random
        self.mix = mix
        self.clock = 1_700_000_000_000 + random.randrange(1000)
        self.huge_left = 0
        self.next_offsets: Counter[tuple[str | bytes, int]] = Counter()
        topics: list[str | bytes] = [*TOPICS, SCHEDULE_TOPIC]
        topics += LONG_TOPICS if mix.version >= (5, 1, 0) else []
        topics += MALFORMED_TOPICS if mix.malformed_topics else []
        self.topics = random.sample(topics, random.randint(1, min(5, len(topics))))

    def chance(self, percent: int) -> bool:
        """Return True in `percent` of 100 cases (and hypothesis shrinks to False)."""
        return self.random.randrange(100) >= 100 - percent

    def draw(self) -> Message | Batch:
        """Draw a message or, rarely, a client batch for one queue."""
        self.step_clock()
        self.huge_left = self.mix.huge_size if self.chance(2) else 0
        topic = self.random.choice(self.topics)
        queue_id = self.random.randrange(self.mix.queues_max)
        if self.chance(1):
            self.restart(topic)
        if topic == SCHEDULE_TOPIC:
            delay = self.random.choice(DELAY_LEVELS)
            queue_id = max(0, min(int(delay), 18) - 1)
            return self.message(topic, queue_id, [("DELAY", delay), ("REAL_TOPIC", "TopicTest")])
        if self.chance(4):
            count = self.random.randint(2, 4)
            return [self.message(topic, queue_id, []) for _ in range(count)]
        return self.message(topic, queue_id, [])

    def step_clock(self) -> None:
        """Let time pass, mostly forward; sometimes it is set back, sometimes days go by."""
        if self.chance(3):
            self.clock -= self.random.randint(1, 20_000)
        elif self.chance(2):
            self.clock += self.random.randint(1, 40) * 86_400_000
        else:
            self.clock += self.random.randrange(2500)

    def restart(self, topic: str | bytes) -> None:
        """Let a topic be deleted and created again: its offsets begin at 0."""
        for queue in self.next_offsets:
            if queue[0] == topic:
                self.next_offsets[queue] = 0

    def message(self, topic: str | bytes, queue_id: int, pairs: Pairs) -> Message:
        """Draw all but the queue and the properties it demands."""
        random = self.random
        kind = random.choice([0] * 12 + [COMMIT, COMMIT, PREPARED, ROLLBACK])
        is_queued = kind in (0, COMMIT)
        message = Message(
            topic=topic,
            queue_id=queue_id,
            queue_offset=self.queue_offset(topic, queue_id) if is_queued else 0,
            body=self.body(),
            properties=self.properties(topic, queue_id, pairs),
            sys_flag=kind | random.choice([0, 0, 0, 0x1, 0x2, 0x101]),
            flag=random.choice(EXTREME_INTS),
            born_timestamp=self.clock - random.randrange(500),
            born_host=random.choice(HOSTS),
            born_port=random.randrange(65536),
            store_timestamp=self.clock,
            store_host=random.choice(HOSTS),
            reconsume_times=random.randrange(3),
            prepared_transaction_offset=0 if kind in (0, PREPARED) else random.randrange(1 << 40),
        )
        # A short topic in a V2 record is legal for a reader, though no broker writes it.
        may_be_v2 = self.mix.version >= (5, 1, 0)
        return replace(message, is_v2=True) if may_be_v2 and self.chance(2) else message

    def queue_offset(self, topic: str | bytes, queue_id: int) -> int:
        """Draw a queue offset: the next one, rarely after a gap, rarely one again."""
        queue = (topic, queue_id)
        if queue not in self.next_offsets and self.chance(10):
            self.next_offsets[queue] = self.random.randint(1, 70)
        offset = self.next_offsets[queue]
        if self.chance(2):
            return max(0, offset - self.random.randint(1, 3))
        if self.chance(2):
            offset += self.random.randint(1, 40)
        # After a gap a broker counts on, or, started again, from what its queue holds.
        self.next_offsets[queue] = self.random.choice([offset, self.next_offsets[queue]]) + 1
        return offset

    def body(self) -> bytes:
        """Draw a body: empty, short or long, now and then with a record's magic inside."""
        size = self.random.choice([0, 1, 5, 40, 200])
        body = bytes(self.random.randrange(256) for _ in range(min(size, 5))).ljust(size, b"b")
        if self.chance(3):
            body += bytes.fromhex("0000005b daa320a7 00000000")
        return body + b"B" * self.take_huge() if self.chance(30) else body

    def take_huge(self) -> int:
        """Return the size of what shall be huge, at most once a draw: it has to fit a file."""
        size, self.huge_left = self.huge_left, 0
        return size

    def text(self, usual: list[str | bytes]) -> str | bytes:
        """Draw a usual text, an odd one, a new one or a huge one."""
        if self.huge_left and self.chance(50):
            return "h" * self.take_huge()
        if self.chance(20):
            return self.random.choice(ODD_TEXTS)
        if self.chance(15):
            return f"{self.random.getrandbits(40):x}"
        return self.random.choice(usual)

    def properties(self, topic: str | bytes, queue_id: int, demanded: Pairs) -> bytes:
        """Draw properties around the demanded ones, well or badly formed."""
        pairs = list(demanded)
        if self.chance(70):
            pairs.append(("TAGS", self.text(TAGS)))
        if self.chance(60):
            pairs.append(("KEYS", self.text(KEYS)))
        elif isinstance(topic, str) and self.chance(20):
            extreme = self.random.choice(EXTREME_INTS)
            pairs.append(("KEYS", key_with_hash(topic, extreme)))
        if self.chance(60):
            pairs.append(("UNIQ_KEY", self.text([f"UK-{self.random.randrange(50)}"])))
        if self.chance(10) and topic != SCHEDULE_TOPIC:
            pairs.append(("DELAY", self.random.choice([*DELAY_LEVELS, "abc", "1.5", " 3"])))
        if self.mix.multi_dispatch and self.chance(20):
            pairs += self.multi_dispatch(queue_id)
        self.random.shuffle(pairs)
        items = [encode_properties([pair], trailing=False) for pair in pairs]
        if self.chance(15):
            items.insert(self.random.randrange(len(items) + 1), self.odd_item())
        trailing = b"" if not items or self.chance(30) else b"\x02"
        return b"\x02".join(items) + trailing

    def odd_item(self) -> bytes:
        """Draw one property that parsers disagree on; tags and keys only, they may be odd."""
        name = self.random.choice([b"TAGS", b"KEYS", b"UNIQ_KEY", b"other"])
        value = self.random.choice([b"TagA", b"k1", b"k9 k8", "😀".encode(), SURROGATE])
        forms = [
            b"",
            b"\x01",
            name,
            name + b"\x01",
            b"\x01" + value,
            b"\x01\x01" + value,
            name + b"\x01" + value,  # Perhaps for the second time: the last one counts.
            name + b"\x01" + value + b"\x01",
            name + b"\x01" + value + b"\x01more",
            name + b"\x01\x01" + value,
            name + b"\x01" + value + b"\x02",
            b"\x02\x02" + name + b"\x01" + value,
        ]
        return self.random.choice(forms)

    def multi_dispatch(self, queue_id: int) -> Pairs:
        """Draw further queues and their offsets, which always parse; the counts may differ."""
        names = self.random.sample(LMQ_NAMES, self.random.randint(1, 3))
        offsets = [str(self.queue_offset(name, self.lmq_queue(name, queue_id))) for name in names]
        if self.mix.version >= (5, 1, 2) and self.chance(10):
            names.insert(0, "%LMQ%with/slash")
            offsets.insert(0, self.random.choice(["0", "7", "x"]))
        if self.chance(5):
            names.append(names[-1])
            offsets.append(offsets[-1])
        if self.chance(8):
            offsets.pop()
        ending = "," if self.chance(5) else ""
        return [
            ("INNER_MULTI_DISPATCH", ",".join(names) + ending),
            ("INNER_MULTI_QUEUE_OFFSET", ",".join(offsets) or " "),
        ]

    def lmq_queue(self, name: str, queue_id: int) -> int:
        """Return the queue id an LMQ's offsets are counted for."""
        return 0 if name.startswith("%LMQ%") else queue_id


def key_with_hash(topic: str, wanted: int) -> str:
    """Find a key for which Java's hashCode of `topic#key` is `wanted`."""
    # Seven characters from 64 on are seven digits of base 31: enough for 2**32 values.
    code = 0
    units = f"{topic}#@@@@@@@".encode("utf-16-be")
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        code = 31 * code + unit
    rest = (wanted - code) % (1 << 32)
    return "".join(chr(64 + rest // 31**place % 31) for place in range(6, -1, -1))


def random_messages(random: Random, n: int, mix: Mix | None = None) -> list[Message | Batch]:
    """Draw `n` messages or client batches, in log order; a file of 8 KiB takes each."""
    generator = Generator(random, mix or Mix())
    return [generator.draw() for _ in range(n)]


def message_lists(
    mix: Mix | None = None, *, max_size: int = 40
) -> st.SearchStrategy[list[Message | Batch]]:
    """Let hypothesis draw what `random_messages` makes, and shrink it."""
    return st.builds(
        random_messages,
        st.randoms(use_true_random=False),
        st.integers(0, max_size),
        st.just(mix or Mix()),
    )
