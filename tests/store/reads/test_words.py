"""Words in a body: in upper or lower case, as texts, beside a plain search in Python."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import ConfigError
from store.reads.message_filter import MessageFilter

# Letters with one upper and one lower case: others change their length.
LETTERS = st.characters(codec="utf-8", categories=("Ll", "Lu", "Nd", "Po")).filter(
    lambda c: len(c.upper()) == len(c.lower()) == 1 and c.upper().lower() == c.lower()
)


def found(words: tuple[str, ...], body: bytes) -> bool:
    batch = pa.record_batch({"body": pa.array([body], pa.binary())})
    return bool(MessageFilter(words=words).column_mask(batch)[0])


@pytest.mark.parametrize(
    ("word", "body", "expected"),
    [
        ("order", "an ORDER of 3", True),
        ("ÄRGER", "ärger", True),
        ("straße", "STRASSE", True),
        ("é", "É", True),
        ("é", "ã", False),
        ("a.c", "abc", False),
        ("a.c", "A.C", True),
        ("(", "(", True),
        ("\\d", "1", False),
        ("世界", "你好世界", True),
    ],
)
def test_a_word_is_a_text_in_any_case(word: str, body: str, *, expected: bool) -> None:
    assert expected == found((word,), body.encode())


def test_all_words_must_be_found() -> None:
    assert found(("a", "B"), b"b and a")
    assert not found(("a", "c"), b"b and a")


def test_a_body_that_is_not_text_is_searched_too() -> None:
    assert found(("abc",), b"\xff\x00ABC\xfe")


@given(st.text(LETTERS, min_size=1, max_size=8), st.text(LETTERS, max_size=30))
def test_words_equal_a_search_in_python(word: str, body: str) -> None:
    for text in (body, body + word.upper(), word.lower() + body):
        assert found((word,), text.encode()) == (word.lower() in text.lower())


def test_a_word_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="not text"):
        MessageFilter(words=("\ud800",))
