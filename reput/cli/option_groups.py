"""Option groups: a frozen dataclass declares related options, a command takes it as a parameter.

Each field of a group is an option, declared as a typer parameter
(``Annotated[…, typer.Option(…)]``). ``--help`` lists the fields in their order, at the position of
the group among the command's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

import typer


def add_command(app: typer.Typer, name: str, command: Callable[..., None]) -> None:
    """Add a command whose parameters may be groups."""
    app.command(name)(_expand_groups(command))


def _expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as a function of individual options, each group expanded to its fields."""
    parameters = signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        p.name: p.annotation for p in parameters if is_dataclass(p.annotation)
    }

    @wraps(command)
    def run(**values: Any) -> None:
        arguments = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**arguments, **values)

    options: list[Parameter] = []
    for p in parameters:
        if p.name in groups:
            options += _options(p.annotation)
        else:
            options.append(p.replace(kind=Parameter.KEYWORD_ONLY))
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]  # typer reads it
    return run


def _options(group: Any) -> Iterator[Parameter]:
    """Yield the fields of a group as parameters."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )
