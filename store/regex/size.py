"""The size of a regular expression: how many states RE2 expands it to, at most.

RE2 writes out counted repetitions, ``x{3}`` as ``xxx``, so counts multiply by the size of what they
repeat. At worst it visits every state at every byte: states times bytes bounds the time of a match.

The expression must be one that RE2 accepts. A state here is a byte, a range of bytes in a class, or
a branch; RE2 simplifies some of them away, and never has more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CLASS_RANGES_MAX = 128  # of disjoint ranges of bytes
_PROPERTY_RANGES = 24  # of a class such as \pL, among the first 256 characters
_PERL_RANGES = 5  # of a class such as \w or [:alnum:], or its complement
_PERL = {"d": 1, "D": 2, "s": 3, "S": 4}
_TOKENS = re.compile(
    r"(?P<quoted>\\Q(?P<text>.*?)(?:\\E|\Z))"
    r"|(?P<property>\\[pP](?:\{[^}]*\}|.))"
    r"|(?P<perl>\\[dDsSwW])"
    r"|(?P<escape>\\(?:x\{[^}]*\}|x[0-9A-Fa-f]{2}|[0-7]{2,3}|.))"
    r"|(?P<char_class>\[\^?\]?(?:\[:\^?\w+:\]|\\(?:[pP]\{[^}]*\}|.)|[^\]\\])*\])"
    r"|(?P<flags>\(\?[a-zA-Z-]*\))"
    r"|(?P<open>\((?:\?P?<\w+>|\?[a-zA-Z-]*:)?)"
    r"|(?P<close>\))|(?P<branch>\|)|(?P<repeat>[*+?])"
    r"|\{(?P<min>[0-9]+)(?P<comma>,(?P<max>[0-9]*))?\}|(?P<dot>\.)|.",
    re.DOTALL,
)
_ITEMS = re.compile(
    r"(?P<posix>\[:\^?\w+:\])|(?P<property>\\[pP](?:\{[^}]*\}|.))|(?P<perl>\\[dDsSwW])"
    r"|(?P<range>(?:\\(?:x\{[^}]*\}|x[0-9A-Fa-f]{2}|.)|[\x00-\x7f])-[\x00-\x5a\x5e-\x7f])"
    r"|\\(?:x\{[^}]*\}|x[0-9A-Fa-f]{2}|.)|.",
    re.DOTALL,
)


@dataclass(slots=True)
class _Group:
    """A group that is open: its states, and those of its last part, which an operator repeats."""

    states: int = 2  # the group's own
    last: int = 0

    def add(self, states: int) -> None:
        self.states += self.last
        self.last = states


def state_count(pattern: str) -> int:
    """Return how many states a regular expression has, at most."""
    folds = 2 if re.search(r"\(\?[a-zA-Z]*i", pattern) else 1  # (?i) adds the other case
    groups = [_Group()]
    for token in _TOKENS.finditer(pattern):
        kind, group = token.lastgroup, groups[-1]
        if token["quoted"] is not None:
            for char in token["text"]:
                group.add(len(char.encode()))
        elif kind == "flags":
            continue
        elif kind == "open":
            groups.append(_Group())
        elif kind == "close" and len(groups) > 1:
            groups.pop()
            groups[-1].add(group.states + group.last)
        elif kind == "repeat":
            group.last += 1 if token["repeat"] == "?" else 2
        elif token["min"] is not None:
            group.last = _repeated(group.last, token)
        else:
            group.add(_size(token, folds))
    return sum(group.states + group.last for group in groups)


def _repeated(states: int, token: re.Match[str]) -> int:
    low = int(token["min"])
    high = int(token["max"]) if token["max"] else low
    copies = max(low, high, 1)
    return states * copies + max(high - low, 0) + (2 if token["comma"] else 0)


def _size(token: re.Match[str], folds: int) -> int:
    """Return the states of a part that is no group."""
    if token["char_class"] is not None:
        return _class_size(token["char_class"], folds)
    if token["property"] is not None:
        return _PROPERTY_RANGES
    if token["perl"] is not None:
        return _PERL.get(token["perl"][1], _PERL_RANGES)
    if token["dot"] is not None:
        return 2
    return len(token[0].encode()) if token["escape"] is None else 2


def _class_size(text: str, folds: int) -> int:
    is_negated = text.startswith("[^")
    ranges = int(is_negated)
    for item in _ITEMS.finditer(text, 1 + is_negated, len(text) - 1):
        if item["range"] is not None:
            ranges += 1
        elif item["posix"] is not None:
            ranges += _PERL_RANGES
        elif item["perl"] is not None:
            ranges += _PERL.get(item["perl"][1], _PERL_RANGES)
        elif item["property"] is not None:
            ranges += _PROPERTY_RANGES
        else:
            ranges += len(item[0].encode()) if item[0][0] != "\\" else 1
    return min(max(ranges, 1) * folds, _CLASS_RANGES_MAX)
