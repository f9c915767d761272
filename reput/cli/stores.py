"""The stores that a command names, as ``[NAME=]STORE[:OUTPUT]``: one syntax for all commands."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from reput.cli import EXIT_BUG, exit_code
from reput.cli.lines import say
from reput.cli.options import (
    OUTPUT_VARIABLE,
    STORE_VARIABLE,
    BrokerOptions,
    ReadOptions,
    is_from_variable,
    opened_store,
)
from store import MessageStore
from store.errors import ConfigError, shown
from store.identity import store_name
from store.io.user_path import given_output, given_path
from store.output.resolve_config import check_fits_all

_NAME_MAX = 100


def one_of_variable(texts: list[str]) -> list[str]:
    """Return the stores given; the variable names one, which its parser divides at white space."""
    one = os.environ.get(STORE_VARIABLE, "")
    return [one] if one and texts == one.split() else texts


def stores_argument(metavar: str, *, several: str) -> Any:
    """Return the argument that names stores; ``several`` is what becomes of more than one."""
    return typer.Argument(
        metavar=metavar,
        envvar=STORE_VARIABLE,
        callback=one_of_variable,
        help=f"The broker's storePathRootDir; several {several}. NAME defaults to brokerName of "
        "its broker.conf, else to the folder's name.",
    )


_READ_TOGETHER = "are read together"
Stores = Annotated[list[str], stores_argument("[NAME=]STORE[:OUTPUT]…", several=_READ_TOGETHER)]
LogStores = Annotated[list[str], stores_argument("[NAME=]STORE…", several=_READ_TOGETHER)]


@dataclass(frozen=True, slots=True)
class NamedStore:
    """The store of one broker; ``output`` holds its queues and index, None if it does itself.

    ``given`` is the NAME that the user gave, where ``name`` is "" for the only store.
    """

    name: str
    store_root: Path
    output: Path | None = None
    given: str = ""


def named_stores(
    texts: Sequence[str], broker_conf: Path | None, output: Path | None = None
) -> list[NamedStore]:
    """Return the stores by their names; ``output`` is that of the only one.

    Raises ConfigError for a malformed or repeated one, or if ``broker_conf`` does not fit all of
    them; StoreIOError.
    """
    if output is not None and len(texts) > 1:
        _refuse_for_several(output, texts)
    stores: dict[str, NamedStore] = {}
    for text in texts:
        name, store_root, own = parse_store(text)
        name = store_name(store_root, broker_conf, name)
        _check_name(name, text)
        if name in stores:
            raise ConfigError(f"two stores have the name {shown(name)}; give one as NAME=STORE")
        stores[name] = NamedStore(name, store_root, _one_output(text, own, output))
    if broker_conf is not None:
        check_fits_all(broker_conf, [store.store_root for store in stores.values()])
    return list(stores.values())


def _refuse_for_several(output: Path, texts: Sequence[str]) -> None:
    """Raise ConfigError for one OUTPUT of several stores, unless each overrides the variable."""
    option = "--output"
    if is_from_variable(output):
        if all(parse_store(text)[2] for text in texts):
            return
        option = f"--output ({OUTPUT_VARIABLE})"
    raise ConfigError(f"{option} applies to one STORE; give several as STORE:OUTPUT")


def read_stores(
    texts: Sequence[str], broker_conf: Path | None, output: Path | None = None
) -> list[NamedStore]:
    """Return the stores that a command reads; the only one has no name: its answer needs none.

    Raises as ``named_stores``.
    """
    if len(texts) > 1:
        return named_stores(texts, broker_conf, output)
    given, store_root, own = parse_store(texts[0])
    return [NamedStore("", store_root, _one_output(texts[0], own, output), given)]


def log_stores(texts: Sequence[str], broker_conf: Path | None) -> list[NamedStore]:
    """Return the stores of which a command reads the log alone. Raises as ``named_stores``."""
    stores = read_stores(texts, broker_conf)
    for store, text in zip(stores, texts, strict=True):
        _refuse_output(store, text)
    return stores


def named_log_stores(texts: Sequence[str], broker_conf: Path | None) -> list[NamedStore]:
    """Return the stores by their names, each without an OUTPUT. Raises as ``named_stores``."""
    stores = named_stores(texts, broker_conf)
    for store, text in zip(stores, texts, strict=True):
        _refuse_output(store, text)
    return stores


def _refuse_output(store: NamedStore, text: str) -> None:
    """Raise ConfigError for a store that is given with an OUTPUT."""
    if store.output is not None:
        raise ConfigError(
            f"{shown(text)} is not a directory; read as STORE:OUTPUT, it names an OUTPUT, which "
            "this command does not take there"
        )


def parse_store(text: str) -> tuple[str, Path, Path | None]:
    """Parse ``[NAME=]STORE[:OUTPUT]``; "" without a name. An existing path is taken as it is.

    Raises ConfigError for an empty path.
    """
    name, separator, rest = text.partition("=")
    if not separator or "/" in name or Path(text).exists():
        name, rest = "", text
    store, separator, output = rest.rpartition(":")
    if not separator or Path(rest).exists():
        return name, given_path(rest), None
    return name, given_path(store), given_output(output)


def _one_output(text: str, own: Path | None, output: Path | None) -> Path | None:
    if own is not None and output is not None and not is_from_variable(output):
        raise ConfigError(f"{shown(text)} names an OUTPUT, and so does --output")
    return own if own is not None else output


def _check_name(name: str, text: str) -> None:
    """Raise ConfigError for a name that cannot be part of a URL or a path."""
    is_plain = name.isprintable() and "/" not in name and name not in (".", "..")
    if not name or not is_plain or len(name) > _NAME_MAX:
        raise ConfigError(
            f"{shown(name)} cannot be the name of a broker; give {shown(text)} as NAME=STORE"
        )


def _say_failure(name: str, error: Exception) -> None:
    say(f"reput: {name}: {error}" if name else f"reput: {error}")


@dataclass
class Failures:
    """The failures of single stores by broker, while the command continues with the others."""

    report: Callable[[str, Exception], None] = _say_failure
    errors: list[tuple[str, Exception]] = field(default_factory=list)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Report an error raised inside; raise that of the only store, whose name is ""."""
        try:
            yield
        except typer.Exit:
            raise
        except Exception as e:
            if not name:
                raise
            self.add(name, e)

    def add(self, name: str, error: Exception) -> None:
        """Report a failure; a bug of this program with its traceback."""
        self.errors.append((name, error))
        self.report(name, error)
        if exit_code(error) == EXIT_BUG:
            traceback.print_exception(error)

    @property
    def names(self) -> list[str]:
        """The brokers that failed."""
        return list(dict.fromkeys(name for name, _ in self.errors))

    def exit(self) -> None:
        """Exit with the lowest code of the failures, if there are any."""
        if self.errors:
            raise typer.Exit(min(exit_code(error) for _, error in self.errors))


@contextmanager
def opened_stores(
    stores: Sequence[NamedStore],
    where: ReadOptions | BrokerOptions,
    failures: Failures,
    max_body_bytes: str | None = None,
) -> Iterator[dict[str, MessageStore]]:
    """Open stores for reading like ``opened_store``; yield by name those that can be opened."""
    with ExitStack() as stack:
        opened: dict[str, MessageStore] = {}
        for store in stores:
            with failures.of(store.name):
                own = (
                    replace(where, output=store.output) if isinstance(where, ReadOptions) else where
                )
                context = opened_store(store.store_root, own, max_body_bytes, store.name)
                opened[store.name] = stack.enter_context(context)
        yield opened
