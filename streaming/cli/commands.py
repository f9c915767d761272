"""The commands of ``reput``: the help lists them all, a call imports only its module."""

from __future__ import annotations

from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

_BUILD = "Build and check"
_READ = "Read messages"
_LOOK = "Look"
_MOVE = "Copy messages"
_TRY = "Try it"


class CommandLine(NamedTuple):
    """A command: its module, and its line in the help (the first line of its docstring)."""

    name: str
    module: str
    help: str
    section: str


# In the order of the help; the commands of a section are adjacent.
COMMANDS = tuple(
    CommandLine(*row)
    for row in (
        ("dispatch", "dispatch", "Build ConsumeQueue and IndexFile, and keep them built.", _BUILD),
        ("status", "status", "Show the status of a dispatch; exit 1 if it is stuck.", _BUILD),
        ("verify", "verify", "Compare queues and index with their commit log.", _BUILD),
        ("recover", "recover", "Recover a root now, as the next dispatch would.", _BUILD),
        ("rebuild", "rebuild", "Rebuild queues and index from the log and swap them in.", _BUILD),
        ("topics", "topics", "Show topics, queues and the lag of consumer groups.", _READ),
        ("get", "read", "Read messages of a queue from a position on.", _READ),
        ("offset", "read", "Find the position in a queue for a time.", _READ),
        ("query", "read", "Find messages by key, unique key or tag.", _READ),
        ("search", "search", "Search the log by key, tag, property, body, time and topic.", _READ),
        ("tail", "search", "Show the newest messages of topics, and follow new ones.", _READ),
        (
            "pending",
            "pending",
            "Show delayed, timer and half messages.",
            _READ,
        ),
        ("usage", "usage", "Show what fills the commit log.", _READ),
        ("message", "message", "Show one message by its commit log offset or id.", _READ),
        ("dump", "dump", "Show one store file record by record.", _READ),
        ("serve", "serve", "Show stores in a web console, and serve their API.", _LOOK),
        ("export", "export", "Write messages to Parquet or JSON files.", _MOVE),
        ("mirror", "mirror", "Send messages to Kafka, each exactly once.", _MOVE),
        ("demo", "demo", "Run a tour on a commit log that the demo writes.", _TRY),
    )
)
_MODULES = {line.name: line.module for line in COMMANDS}


class CommandGroup(TyperGroup):
    """Knows the name and help of each command; imports a command's module when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            line.name: TyperCommand(line.name, help=line.help, short_help=line.help)
            for line in COMMANDS
        }

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Return the command that the arguments name, loaded, and the remaining arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if name is None or command is None else load_command(name), rest

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the commands by section."""
        for section, lines in groupby(COMMANDS, key=lambda line: line.section):
            with formatter.section(section):
                formatter.write_dl([(line.name, line.help) for line in lines])


def load_command(name: str) -> Command:
    """Import a command's module and return the command."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    import_module(f"streaming.cli.{_MODULES[name]}").register(app)
    return get_group(app).commands[name]
