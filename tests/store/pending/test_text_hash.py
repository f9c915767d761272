"""Hashes of texts: equal for equal texts, whatever batch they are in."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from store.pending.text_hash import TextHash

TEXTS = st.lists(st.one_of(st.none(), st.text("\0aé", max_size=6)), max_size=30)


@given(TEXTS, TEXTS)
def test_hashes_are_equal_for_equal_texts_only(
    some: list[str | None], others: list[str | None]
) -> None:
    texts, hasher = [*some, *others], TextHash()
    batches = [pa.array(some, pa.string()), pa.array(["x", *others], pa.string()).slice(1)]
    pairs = [
        pair
        for batch in batches
        for pair in zip(*(column.to_pylist() for column in hasher.of(batch)), strict=True)
    ]
    assert [pair == (None, None) for pair in pairs] == [text is None for text in texts]
    for text, pair in zip(texts, pairs, strict=True):
        assert [text == other for other in texts] == [pair == other for other in pairs]


def test_texts_of_any_length_are_hashed() -> None:
    texts = ["a" * n for n in (1, 4096, 4097, 32_000)]
    hasher = TextHash()
    first, _ = hasher.of(pa.array(texts))
    again = [hasher.of(pa.array([text]))[0].to_pylist()[0] for text in reversed(texts)]
    assert first.to_pylist() == again[::-1]
    assert len(set(again)) == len(texts)


def test_two_objects_have_different_hashes() -> None:
    one, other = (TextHash().of(pa.array(["a"]))[0].to_pylist() for _ in range(2))
    assert one != other
