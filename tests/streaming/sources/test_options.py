"""Options of the data source as text: every value is parsed within bounds, or refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import ConfigError
from streaming.sources.option_values import check_size, parse_bytes, parse_time_ms, spark_interval
from streaming.sources.options import MIN_PARTITIONS_MAX, parse_options

INT64_MAX = (1 << 63) - 1
NAMES = (
    "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "subscribe",
    "subscribePattern", "maxBytesPerTrigger", "minPartitions", "failOnDataLoss", "includeBody",
    "brokerVersion",
)  # fmt: skip
ODD = st.one_of(
    st.text(max_size=30),
    st.integers().map(str),
    st.sampled_from(["[", "{", "9", "(", "1m", '{"commit_log_offset":']).map(
        lambda c: (c * 5_000)[:20_000]
    ),
    st.integers().map(lambda n: f'{{"commit_log_offset": {n}}}'),
    st.datetimes().map(str),
)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingOffsets", "[" * 5_000),
        ("startingOffsets", "9" * 5_000),
        ("startingOffsets", '{"commit_log_offset": ' + "9" * 5_000 + "}"),
        ("startingOffsets", f'{{"commit_log_offset": {INT64_MAX + 1}}}'),
        ("endingOffsets", "{" * 5_000),
        ("startingTimestamp", "99999999999999999999999999"),
        ("startingTimestamp", "9" * 5_000),
        ("endingTimestamp", "-99999999999999999999999999"),
        ("maxBytesPerTrigger", "99999999999999999999g"),
        ("maxBytesPerTrigger", "9" * 5_000),
        ("minPartitions", "99999999999"),
        ("minPartitions", str(MIN_PARTITIONS_MAX + 1)),
        ("minPartitions", "9" * 5_000),
        ("subscribePattern", "(" * 5_000),
        ("subscribePattern", "(" * 5_000 + ")" * 5_000),
        ("subscribePattern", "a{99999999999999999999}"),
        ("subscribePattern", "[[a]"),
        ("subscribePattern", "[a-z&&b]"),
    ],
    ids=lambda text: f"{text[:30]}{len(text)}",
)
def test_a_value_out_of_bounds_is_refused_in_one_short_line(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=option) as caught:
        parse_options({"path": "store", option: value})
    assert value[:100] in str(caught.value)
    assert len(str(caught.value)) < 600


@given(st.sampled_from(NAMES), ODD)
def test_any_value_is_parsed_or_refused(option: str, value: str) -> None:
    try:
        options = parse_options({"path": "store", option: value})
    except ConfigError:
        return
    numbers = (
        options.starting_offsets, options.ending_offsets, options.starting_timestamp,
        options.ending_timestamp, options.max_bytes_per_trigger, options.min_partitions,
    )  # fmt: skip
    assert all(abs(n) <= INT64_MAX for n in numbers if isinstance(n, int))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (str(INT64_MAX), INT64_MAX),
        (str(-INT64_MAX), -INT64_MAX),
        (str(INT64_MAX + 1), None),
        ("1969-12-31T23:59:59.999Z", -1),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        ("٣", None),
    ],
)
def test_times_fit_64_bits(text: str, expected: int | None) -> None:
    assert parse_time_ms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64m", 64 << 20),
        (f"{INT64_MAX}", INT64_MAX),
        (f"{INT64_MAX}k", None),
        ("8388607t", 8388607 << 40),
        ("8388608t", None),
        ("1e3", None),
    ],
)
def test_sizes_fit_64_bits(text: str, expected: int | None) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("value", [0, -1, INT64_MAX + 1])
def test_sizes_given_as_numbers_are_bounded(value: int) -> None:
    with pytest.raises(ConfigError, match=f"max_bytes_per_trigger={value} is not"):
        check_size("max_bytes_per_trigger", value)
    check_size("max_bytes_per_trigger", None)
    check_size("max_bytes_per_trigger", INT64_MAX)


def test_an_interval_beyond_sparks_own_is_refused() -> None:
    assert spark_interval("999999999h") == "999999999 hours"
    with pytest.raises(ConfigError, match="9999999999h"):
        spark_interval("9999999999h")


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("name", ["output", "OUTPUT"])
def test_the_removed_option_output_is_refused_with_what_replaces_it(
    name: str, *, streaming: bool
) -> None:
    says = "option 'output' no longer exists: omit it. .* the messages' own"
    with pytest.raises(ConfigError, match=says):
        parse_options({"path": "store", name: "/data/reput"}, streaming=streaming)
