"""The command line ``reput``: one module per command; an error is one line and an exit code.

====  ==========================================================
exit  meaning
====  ==========================================================
0     ok
1     the answer is "no", or the comparison found differences
2     usage: an invalid option, or settings that do not match OUTPUT
3     damaged or lost input
4     OUTPUT or the mirror's name is in use
5     unsupported format
6     I/O error: the operating system or Kafka refused, or Kafka is unreachable
7     Spark or Java failed
70    internal error (with a traceback)
====  ==========================================================

PySpark is imported only by a command that needs it, when it runs.
"""

from __future__ import annotations

import io
import logging
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from reput.cli.commands import CommandGroup
from reput.cli.lines import print_line, say
from store import kernels
from store.errors import (
    SHOWN_MAX,
    ConfigError,
    KafkaIOError,
    OutputInUseError,
    SparkError,
    StoreError,
    StoreIOError,
    UnknownTopicError,
    UnsupportedFormatError,
)
from store.printable import printable

EXIT_NO = 1
EXIT_DAMAGE = 3
_EXIT_USAGE = 2
_EXIT_IO = 6
_EXIT_SPARK = 7
EXIT_BUG = 70
_EXIT_CODES: tuple[tuple[type[StoreError], int], ...] = (
    (UnknownTopicError, EXIT_NO),
    (ConfigError, _EXIT_USAGE),
    (OutputInUseError, 4),
    (UnsupportedFormatError, 5),
    (SparkError, _EXIT_SPARK),
    (StoreIOError, _EXIT_IO),
    (KafkaIOError, _EXIT_IO),
)
# \b keeps the lines of a paragraph.
_EPILOG = """
\b
Exit codes:
  0 ok
  1 the answer is no, or the comparison found differences
  2 usage
  3 damaged or lost input
  4 OUTPUT in use
  5 unsupported format
  6 I/O error
  7 Spark or Java failed
"""
_ANY_WIDTH = 10_000  # no limit: help is as wide as the terminal
# Raised for a command line that cannot be parsed. Typer exports only a subclass of it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main() -> None:
    """Run ``reput`` with the process's arguments and exit."""
    _escape_unencodable_output()
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("reput: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # It reports that kernels are being compiled.
    logging.getLogger(kernels.__name__).setLevel(logging.INFO)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # a failed batch is reported in one line
    for client in ("kafka", "librdkafka"):  # they log every attempt; the outcome is reported here
        logging.getLogger(client).propagate = False
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command line: print its output and return its exit code."""
    try:
        # Not standalone: typer then returns the code of an Exit and leaves errors to the caller.
        code = build_app()(args=list(arguments), prog_name="reput", standalone_mode=False)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    except _UsageError as e:
        say(f"reput: {_usage_error(e)}")
        return _EXIT_USAGE
    except UnicodeEncodeError as e:
        if e.encoding != sys.getfilesystemencoding() or e.encoding == "utf-8":
            traceback.print_exc()
            return EXIT_BUG
        name = e.object[e.start : e.end]
        say(f"reput: a file name cannot be encoded as {e.encoding}: {name!a} (set PYTHONUTF8=1)")
        return _EXIT_IO
    except Exception as e:  # noqa: BLE001 - every error becomes an exit code
        code = exit_code(e)
        if code == EXIT_BUG:
            traceback.print_exc()
        else:
            say(f"reput: {_one_line(e)}")
        return code
    return code if isinstance(code, int) else 0


def build_app() -> typer.Typer:
    """Return the command line with all commands."""
    app = typer.Typer(
        cls=CommandGroup,
        help="RocketMQ's reput without a broker: build ConsumeQueue and IndexFile from a "
        "CommitLog, check them, and read messages by queue offset, time, key or commit log "
        "offset.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": _ANY_WIDTH,
        },
        epilog=_EPILOG,
    )
    app.callback(invoke_without_command=True)(_top)
    return app


def _top(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as package_version

        print_line(f"reput {package_version('rocketmq-reput')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(_EXIT_USAGE)


def exit_code(error: Exception) -> int:
    """Return the exit code of an error."""
    if type(error).__module__.partition(".")[0] in ("pyspark", "py4j"):
        return _EXIT_SPARK
    if isinstance(error, StoreError):
        for kind, code in _EXIT_CODES:
            if isinstance(error, kind):
                return code
        return EXIT_DAMAGE
    return _EXIT_IO if isinstance(error, OSError) else EXIT_BUG


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _usage_error(error: Exception) -> str:
    """Return typer's message about a command line, with a pointer to the command's help."""
    message = " ".join(map(_shorten, error.format_message().split()))  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message} (see {context.command_path} --help)"


def _shorten(word: str) -> str:
    return word if len(word) <= SHOWN_MAX else f"{word[:SHOWN_MAX]}…"


def _escape_unencodable_output() -> None:
    """Make stdout and stderr escape characters that their encoding lacks, so output never fails.

    File names that are not UTF-8 contain lone surrogates, which no encoding has.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _OneLine(logging.Formatter):
    """Escapes control characters in a log line; a traceback below it stays unchanged."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging calls it
        return printable(super().formatMessage(record))
