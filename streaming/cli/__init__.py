"""The command line ``reput``: commands by module, errors as one line and an exit code.

====  ==========================================================
exit  meaning
====  ==========================================================
0     ok
1     the answer is "no", or what was compared differs
2     usage: an option, or settings that do not fit the root
3     damaged or lost input
4     the root, or the name of a mirror, is in use
5     a format that is not read here
6     the operating system or Kafka refused, or was not reached
7     Spark or Java failed
70    a bug of ours (with a traceback)
====  ==========================================================

Nothing here loads PySpark before a command that needs it runs.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version as package_version
from typing import Annotated

import typer

from store.errors import (
    ConfigError,
    KafkaIOError,
    RootInUseError,
    SparkError,
    StoreError,
    StoreIOError,
    UnsupportedFormatError,
)

EXIT_NO = 1
EXIT_DAMAGE = 3
_EXIT_IO = 6
_EXIT_SPARK = 7
_EXIT_BUG = 70
_EXIT_CODES: tuple[tuple[type[StoreError], int], ...] = (
    (ConfigError, 2),
    (RootInUseError, 4),
    (UnsupportedFormatError, 5),
    (SparkError, _EXIT_SPARK),
    (StoreIOError, _EXIT_IO),
    (KafkaIOError, _EXIT_IO),
)
# The order of the commands in the help.
_MODULES = (
    "dispatch", "status", "verify", "recover", "rebuild", "export", "topics", "read", "dump",
    "mirror", "demo",
)  # fmt: skip


def main() -> None:
    """Run ``reput`` with the process's arguments and exit."""
    logging.basicConfig(level=logging.WARNING, format="reput: %(message)s")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # a failed batch is told in one line
    logging.getLogger("kafka").propagate = False  # it tells every attempt; we tell the outcome
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command line; print what it says and return its exit code."""
    try:
        build_app()(args=list(arguments), prog_name="reput")
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    except Exception as e:  # noqa: BLE001 - whatever it is becomes an exit code
        code = exit_code(e)
        if code == _EXIT_BUG:
            traceback.print_exc()
        else:
            typer.echo(f"reput: {_one_line(e)}", err=True)
        return code
    return 0


def build_app() -> typer.Typer:
    """Return the command line with all commands."""
    app = typer.Typer(
        help="RocketMQ's reput without a broker: build ConsumeQueue and IndexFile from a "
        "CommitLog, check them, and read messages by queue offset, time, key or commit log "
        "offset.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Exit codes: 0 ok, 1 the answer is no or something differs, 2 usage, 3 damaged or "
        "lost input, 4 root in use, 5 a format that is not read, 6 I/O error, 7 Spark or Java "
        "failed.",
    )
    app.callback(invoke_without_command=True)(_top)
    for name in _MODULES:
        import_module(f"streaming.cli.{name}").register(app)
    return app


def _top(
    *, version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False
) -> None:
    if version:
        typer.echo(f"reput {package_version('rocketmq-reput')}")
        raise typer.Exit


def exit_code(error: Exception) -> int:
    """Return the exit code of an error."""
    if type(error).__module__.partition(".")[0] in ("pyspark", "py4j"):
        return _EXIT_SPARK
    if isinstance(error, StoreError):
        for kind, code in _EXIT_CODES:
            if isinstance(error, kind):
                return code
        return EXIT_DAMAGE
    return _EXIT_IO if isinstance(error, OSError) else _EXIT_BUG


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
