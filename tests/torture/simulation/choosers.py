"""Which unsynced changes a power loss keeps: at random, one-sided, or each combination in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

Keeps = Callable[[str, int], bool]  # takes a change's kind and number


@dataclass
class ByRule:
    """Keeps the changes that a rule selects, and earlier ones to the same sector or name."""

    keeps: Keeps

    def kept(self, kind: str, numbers: Sequence[int]) -> int:
        """Return how many changes are kept: up to the last one that the rule selects."""
        return max(
            (n + 1 for n, number in enumerate(numbers) if self.keeps(kind, number)), default=0
        )


@dataclass
class AtRandom:
    """Draws each sector's version and each entry's fate independently."""

    random: Random
    chance: float

    def kept(self, kind: str, numbers: Sequence[int]) -> int:
        """Return how many changes are kept."""
        if self.random.random() < self.chance:
            return self.random.randint(1, len(numbers))
        return 0


class EachInTurn:
    """Enumerates all combinations of choices: one per run, ``next`` advances to the following."""

    def __init__(self) -> None:
        self._made: list[tuple[int, int]] = []  # each choice, and its maximum
        self._at = 0

    def kept(self, kind: str, numbers: Sequence[int]) -> int:
        """Return this run's choice."""
        if self._at == len(self._made):
            self._made.append((0, len(numbers)))
        choice, most = self._made[self._at]
        assert most == len(numbers), "a run made different changes from the previous one"
        self._at += 1
        return choice

    @property
    def choices(self) -> list[int]:
        """This run's choices so far."""
        return [choice for choice, _ in self._made[: self._at]]

    def next(self) -> bool:
        """Advance to the next combination; return False if there is none."""
        self._at = 0
        while self._made:
            choice, most = self._made.pop()
            if choice < most:
                self._made.append((choice + 1, most))
                return True
        return False


MODES = (
    "random",
    "all lost",
    "all kept",
    "one kept",
    "one lost",
    "first kept",
    "last kept",
    "metadata kept",
    "data kept",
)


def chooser_for(mode: str, random: Random, last: int) -> AtRandom | ByRule:
    """Return the chooser of a mode; ``last`` is the number of the most recent change."""
    turn = random.randint(max(1, last - random.choice([3, 30, 300])), max(1, last))
    rules: dict[str, Keeps] = {
        "all lost": lambda _kind, _number: False,
        "all kept": lambda _kind, _number: True,
        "one kept": lambda _kind, number: number == turn,
        "one lost": lambda _kind, number: number != turn,
        "first kept": lambda _kind, number: number <= turn,
        "last kept": lambda _kind, number: number >= turn,  # written back out of order
        "metadata kept": lambda kind, _number: kind != "data",  # files full of zeros
        "data kept": lambda kind, _number: kind == "data",
    }
    if mode == "random":
        return AtRandom(random, random.choice([0.1, 0.5, 0.9]))
    return ByRule(rules[mode])
