"""Query parameters of pages and API, parsed; an error names the parameter and its value."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.datastructures import QueryParams

from store.commitlog.record import Message, decode_msg_id
from store.errors import ConfigError, shown
from streaming.sources.option_values import parse_time

if TYPE_CHECKING:
    from store.reads.message_filter import MessageFilter

TAIL_PARAMETERS = frozenset({"topic", "tag", "key", "property", "body", "words", "n"})
SEARCH_PARAMETERS = (TAIL_PARAMETERS - {"n"}) | {
    "queue_id", "queue_offset", "from_time", "to_time", "uniq_key", "msg_id", "commit_log_offset",
    "order", "max", "next", "format",
}  # fmt: skip
NEWEST, OLDEST = "newest", "oldest"
_INT64_MAX = (1 << 63) - 1
_INT32_MAX = (1 << 31) - 1


class ParameterError(ConfigError):
    """A query parameter is malformed; ``parameter`` is its name."""

    def __init__(self, parameter: str, reason: str) -> None:
        super().__init__(f"{parameter}: {reason}")
        self.parameter = parameter


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """What to search for; ``store_host`` is that of a message id.

    ``max_count`` is None without a limit. ``start`` is the place in a queue (topic, queue id,
    queue offset) at which to start, which must still be looked up.
    """

    wanted: MessageFilter
    is_newest_first: bool
    max_count: int | None
    start: tuple[str, int, int] | None = None
    store_host: str | None = None

    def matches(self, message: Message) -> bool:
        """Return whether a message that the filter selects is the one of a message id."""
        return self.store_host is None or message.store_host == self.store_host

    def starting_at(self, offset: int, size: int) -> SearchQuery:
        """Return the query that starts with the record at a physical offset."""
        return self._bounded(offset, offset + size)

    def with_max(self, count: int) -> SearchQuery:
        """Return the query with a limit, at most that of the query itself."""
        own = self.max_count
        return replace(self, max_count=count if own is None else min(own, count))

    def resuming_at(self, offset: int) -> SearchQuery:
        """Return the query that resumes at a physical offset: ``next`` of an earlier answer."""
        return self._bounded(offset, offset)

    def _bounded(self, begin: int, end: int) -> SearchQuery:
        low, high = self.wanted.from_offset, self.wanted.to_offset
        if self.is_newest_first:
            high = end if high is None else min(high, end)
        else:
            low = begin if low is None else max(low, begin)
        return replace(self, wanted=replace(self.wanted, from_offset=low, to_offset=high))


def parse_search(params: QueryParams) -> SearchQuery:
    """Parse the parameters of a search. Raises ParameterError."""
    begin, end = _time(params, "from_time"), _time(params, "to_time")
    if begin is not None and end is not None and begin > end:
        raise ParameterError("to_time", "earlier than from_time")
    keys = texts(params, "key") + [key.strip() for key in texts(params, "uniq_key")]
    topics, queue_id = texts(params, "topic"), number(params, "queue_id", high=_INT32_MAX)
    offset, host = number(params, "commit_log_offset"), None
    msg_id = text(params, "msg_id")
    if msg_id is not None:
        try:
            host, offset = decode_msg_id(msg_id.strip())
        except ConfigError as e:
            raise ParameterError("msg_id", str(e)) from e
        if offset < 0:
            raise ParameterError("msg_id", f"{shown(msg_id)} names a negative offset")
    wanted = _filter(
        params,
        topics=frozenset(topics),
        queue_id=queue_id,
        from_time=begin,
        to_time=end,
        keys=frozenset(keys),
        from_offset=offset,
        to_offset=None if offset is None else offset + 1,
    )
    query = SearchQuery(
        wanted,
        choice(params, "order", (NEWEST, OLDEST)) == NEWEST,
        number(params, "max", low=1),
        _start(params, topics, queue_id),
        host,
    )
    at = number(params, "next")
    return query if at is None else query.resuming_at(at)


def parse_tail(params: QueryParams) -> MessageFilter:
    """Parse the conditions of a tail. Raises ParameterError."""
    keys = frozenset(texts(params, "key"))
    return _filter(params, topics=frozenset(texts(params, "topic")), keys=keys)


def _filter(params: QueryParams, **conditions: Any) -> MessageFilter:
    """Return the filter with the conditions on tags, properties and bodies too."""
    from store.reads.message_filter import MessageFilter  # noqa: PLC0415 - loads pyarrow

    content: dict[str, Any] = {
        "tag": {"tags": text(params, "tag")},
        "body": {"body": text(params, "body")},
        "words": {"words": tuple(" ".join(texts(params, "words")).split())},
    }
    wanted = MessageFilter(**conditions, properties=_properties(params))
    for name, condition in content.items():
        if any(condition.values()):
            try:
                wanted = replace(wanted, **condition)
            except ConfigError as e:
                raise ParameterError(name, str(e)) from e
    return wanted


def _properties(params: QueryParams) -> dict[str, str]:
    properties: dict[str, str] = {}
    for pair in texts(params, "property"):
        name, separator, value = pair.partition("=")
        if not name or not separator or not value:
            raise ParameterError("property", f"{shown(pair)} is not NAME=VALUE")
        if properties.setdefault(name, value) != value:
            raise ParameterError("property", f"{shown(name)} cannot have two values")
    return properties


def _start(
    params: QueryParams, topics: list[str], queue_id: int | None
) -> tuple[str, int, int] | None:
    queue_offset = number(params, "queue_offset")
    if queue_offset is None:
        return None
    if len(topics) != 1 or queue_id is None:
        raise ParameterError("queue_offset", "needs one topic and queue_id")
    return topics[0], queue_id, queue_offset


def _time(params: QueryParams, name: str) -> int | None:
    try:
        return parse_time(name, text(params, name))
    except ConfigError as e:
        raise ParameterError(name, str(e).removeprefix(f"{name} ")) from e


def check_names(params: QueryParams, known: Collection[str]) -> None:
    """Raise ParameterError for a parameter that is not known: a misspelt one would be ignored."""
    for name in params:
        if name not in known:
            names = ", ".join(sorted(known)) if known else "none"
            raise ParameterError(name, f"unknown parameter; known here: {names}")


# --- single values -------------------------------------------------------------------------------


def text(params: QueryParams, name: str) -> str | None:
    """Return a parameter's value, None if it is missing or blank. Raises ParameterError."""
    values = texts(params, name)
    if len(values) > 1:
        raise ParameterError(name, "given more than once")
    return values[0] if values else None


def texts(params: QueryParams, name: str) -> list[str]:
    """Return the values of a parameter that may be repeated, without blank ones."""
    return [value for value in params.getlist(name) if value.strip()]


def number(params: QueryParams, name: str, *, low: int = 0, high: int = _INT64_MAX) -> int | None:
    """Return an integer in a range, None if missing. Raises ParameterError."""
    value = text(params, name)
    return None if value is None else parse_number(name, value, low=low, high=high)


def parse_number(name: str, value: str, *, low: int = 0, high: int = _INT64_MAX) -> int:
    """Parse an integer in a range. Raises ParameterError."""
    digits = value.strip()
    if digits.isascii() and digits.isdigit() and len(digits) <= len(str(_INT64_MAX)):
        found = int(digits)
        if low <= found <= high:
            return found
    raise ParameterError(name, f"{shown(value)} is not an integer from {low} to {high}")


def choice(params: QueryParams, name: str, choices: tuple[str, ...]) -> str:
    """Return one of the choices, the first if missing. Raises ParameterError."""
    value = text(params, name)
    if value is None:
        return choices[0]
    if value not in choices:
        raise ParameterError(name, f"{shown(value)} is not one of {', '.join(choices)}")
    return value
