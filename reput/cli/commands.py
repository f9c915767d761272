"""The commands of ``reput``: the help lists them all, a call imports only its module.

A command is the function of its name in its module. The first line of its docstring is its line in
the help, which is read from the source: importing all modules takes a second.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from reput.cli.option_groups import add_command

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

# By section, in the order of the help: the modules of the commands.
SECTIONS = {
    "Build and check": {
        "dispatch": "dispatch",
        "status": "status",
        "verify": "verify",
        "recover": "recover",
        "rebuild": "rebuild",
    },
    "Read messages": {
        "topics": "topics",
        "get": "read",
        "offset": "read",
        "query": "read",
        "search": "search",
        "tail": "search",
        "pending": "pending",
        "usage": "usage",
        "message": "message",
        "dump": "dump",
    },
    "Look": {"serve": "serve"},
    "Copy messages": {"export": "export", "mirror": "mirror"},
    "Try it": {"demo": "demo"},
}
COMMANDS = {name: module for section in SECTIONS.values() for name, module in section.items()}


class CommandGroup(TyperGroup):
    """Knows the name and help of each command; imports a command's module when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        lines = {name: help_line(name) for name in COMMANDS}
        self.commands = {
            name: TyperCommand(name, help=line, short_help=line) for name, line in lines.items()
        }

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Return the command that the arguments name, loaded, and the remaining arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if name is None or command is None else load_command(name), rest

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the commands by section."""
        for section, names in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, self.commands[name].help or "") for name in names])


def help_line(name: str) -> str:
    """Return a command's line in the help."""
    source = Path(__file__).with_name(f"{COMMANDS[name]}.py").read_text("utf-8")
    found = re.search(rf'^def {name}\(.*?"""(.*?)\n', source, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def load_command(name: str) -> Command:
    """Import a command's module and return the command."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    add_command(app, name, getattr(import_module(f"{__package__}.{COMMANDS[name]}"), name))
    return get_group(app).commands[name]
