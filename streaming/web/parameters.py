"""Query parameters of pages and API, parsed; an error names the parameter and its value."""

from __future__ import annotations

from starlette.datastructures import QueryParams

from store.errors import ConfigError, shown

_INT64_MAX = (1 << 63) - 1


class ParameterError(ConfigError):
    """A query parameter is malformed; ``parameter`` is its name."""

    def __init__(self, parameter: str, reason: str) -> None:
        super().__init__(f"{parameter}: {reason}")
        self.parameter = parameter


def text(params: QueryParams, name: str) -> str | None:
    """Return a parameter's value, None if it is missing or blank. Raises ParameterError."""
    values = params.getlist(name)
    if len(values) > 1:
        raise ParameterError(name, "given more than once")
    return values[0] if values and values[0].strip() else None


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
