"""The states of an expression, beside the size of the program that RE2 makes of it."""

import pytest

from store.errors import ConfigError
from store.reads.message_filter import MessageFilter
from store.regex.match import STATES_MAX, Regex
from store.regex.size import state_count


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("abc", 5),
        ("(?:abc){9}", 47),
        ("(((a{9}){9}){9})", 913),
        ("[ab]?", 5),
        ("[a-z]", 3),
        (r"\x{41}\x41\101", 8),
        (r"\Q{9}(\E", 6),
    ],
)
def test_counts_multiply_with_what_they_repeat(pattern: str, states: int) -> None:
    assert states == state_count(pattern)


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        (r"(?:[ab]?c){9}", 31),
        (r"(?:[[:alpha:])]?b?){9}", 49),
        (r"(?:\Q)\E?a?){9}", 40),
        (r"(?:[])]?b?){9}", 49),
        (r"(?:[^])\]]?){9}", 40),
        (r"(?i:(?:k[a-f0-9]?){9})", 40),
        (r"(?:\pLx){9}", 76),
        (r"(?:\PL\W\S\D){9}", 175),
        (r"(?P<a>\)?){9}", 40),
        (r"(?:(?:a|b|cd){3,7}|\x{41}*\101+){9}", 265),
        ("(?:é?x){9}", 40),
        (r"(?:[[:^digit:]é-]x){9}", 31),
        (r"(?:(?:a*)*){9,}", 21),
        (r"(?:.\b$){9}", 39),
        (r"(?:[[a](?:b){5}){9}", 67),
    ],
)
def test_the_count_is_not_below_the_size_that_re2_reports(pattern: str, size: int) -> None:
    """``size`` is RE2::ProgramSize, in Latin-1, with four instructions around the expression."""
    Regex.parse(pattern)
    assert size - 4 <= state_count(pattern) <= 5 * size


@pytest.mark.parametrize(
    "pattern",
    ["(?:" + "[ab]?" * 140 + "){300}c", "(?:(?:[ab]?){30}){33}(?:[ab]?c){999}(?:abcd){600}"],
)
def test_an_expression_of_too_many_states_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match=f"states, more than {STATES_MAX}"):
        MessageFilter(body=pattern)


def test_words_of_too_many_letters_are_refused() -> None:
    with pytest.raises(ConfigError, match="states"):
        MessageFilter(words=("a" * 4000,))


@pytest.mark.parametrize(
    "pattern",
    [
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        r"[\w.+-]{1,64}@[\w.-]{1,255}",
        r"\{900\}",
        "[{9}]{2}",
        r'"id":\s*\d{1,20}',
    ],
)
def test_an_ordinary_expression_is_taken(pattern: str) -> None:
    assert Regex.parse(pattern).pattern == pattern
