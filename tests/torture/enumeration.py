"""Every state that a power loss can leave after one small batch, not a sample of them.

One batch is dispatched into OUTPUT; the next dies in a call, and every legal combination of its
unsynced sectors, sizes and directory entries is produced in turn. Each must recover to OUTPUT as
it was before the batch or is after it. The same is then done for the recovery itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from pathlib import Path

from store.config import StoreConfig
from tests.logs.build import Message
from tests.torture.simulation.choosers import EachInTurn
from tests.torture.simulation.simulated_disk import Plan
from tests.torture.simulation.stage import TINY, Stage

CONFIG = replace(TINY, max_index_num=100)
EXT = replace(CONFIG, enable_consume_queue_ext=True)


@dataclass(frozen=True)
class Case:
    """Topics and keys of the messages of two batches; all states of the second are tried."""

    config: StoreConfig
    first: str
    second: str

    @property
    def messages(self) -> list[Message]:
        """The messages: each letter is a topic, a capital letter gives the message keys."""
        offsets: Counter[str] = Counter()
        messages = []
        for n, letter in enumerate(self.first + self.second):
            topic = letter.lower()
            properties = [("KEYS", f"k{n} x{n}")] if letter.isupper() else ()
            messages.append(
                Message(
                    topic=topic,
                    queue_offset=offsets[topic],
                    store_timestamp=1000 + n,
                    properties=properties,
                )
            )
            offsets[topic] += 1
        return messages


# Queue files hold two units: a stays in its file, b starts the next one, c is a new queue.
CASES = {
    "one message": Case(CONFIG, "A", "A"),
    "queues and index": Case(CONFIG, "aBb", "AbC"),
    "an ext unit": Case(EXT, "A", "A"),
    "a new queue with ext": Case(EXT, "A", "C"),
}


@dataclass
class Figures:
    """Counts of what was enumerated."""

    outcomes: Counter[str] = field(default_factory=Counter)  # states by the state recovered to
    calls: Counter[str] = field(default_factory=Counter)  # states by the interrupted call
    most: int = 0  # states after one call

    @property
    def states(self) -> int:
        """The number of states."""
        return self.outcomes.total()


def enumerate_call(stage: Stage, at: int, figures: Figures) -> None:
    """Try all states that a run leaves if it dies in call ``at``."""
    before, after = stage.kept_end, stage.log.end
    chooser, states, has_next = EachInTurn(), 0, True
    while has_next:
        with stage.trial() as device:
            disk = stage.run(device, Plan(dies_at=at), ())
            device.power_loss(chooser)
            try:
                offset = stage.recovered(device)
                assert offset in (before, after)
                if states % 50 == 0:
                    stage.finish(device)
            except BaseException as e:
                e.add_note(f"died in call {at}, {disk.died_in}; state {states}: {chooser.choices}")
                raise
        figures.outcomes["before" if offset == before else "after"] += 1
        figures.calls[disk.died_in] += 1
        states += 1
        has_next = chooser.next()
    figures.most = max(figures.most, states)


def first_batch_done(directory: Path, case: Case) -> Stage:
    """Return a stage on which trials begin after the first batch."""
    stage = Stage(directory, case.config, case.messages)
    stage.log.show(stage.log.records[len(case.first) - 1].end)
    with stage.trial() as device:
        stage.run(device, Plan(), ())
        stage.keep(device)
    stage.kept_end = stage.log.shown
    stage.log.show(stage.log.end)
    return stage


def calls_of(stage: Stage) -> list[str]:
    """Return the calls of an uninterrupted run, in order."""
    with stage.trial() as device:
        return stage.run(device, Plan(), ()).calls


def richest(calls: Sequence[str]) -> list[int]:
    """Return the calls before which most is unsynced: each first fsync after writes."""
    ways = enumerate(pairwise(calls), 2)
    return [at for at, (before, call) in ways if before == "pwrite" and call == "fsync"]


def run(directory: Path, *, names: Iterable[str] = tuple(CASES), whole: bool = True) -> Figures:
    """Enumerate; ``whole``: after every call of the batch and of its recovery, else a few."""
    figures = Figures()
    for name in names:
        with closing(first_batch_done(directory / name, CASES[name])) as stage:
            calls = calls_of(stage)
            for at in range(1, len(calls) + 1) if whole else richest(calls):
                enumerate_call(stage, at, figures)
            with stage.trial() as device:
                stage.run(device, Plan(dies_at=most_written(calls)), ())
                stage.keep(device)
            calls = calls_of(stage)
            for at in range(1, len(calls) + 1) if whole else richest(calls):
                enumerate_call(stage, at, figures)
    return figures


def most_written(calls: Sequence[str]) -> int:
    """Return the call at which all data of the batch is written and none of it is synced."""
    rows = [(at, len(list(_row_before(calls, at)))) for at in richest(calls)]
    return max(rows, key=lambda row: row[1])[0]


def _row_before(calls: Sequence[str], at: int) -> Iterable[str]:
    return takewhile(lambda call: not call.startswith("fsync"), reversed(calls[: at - 1]))
