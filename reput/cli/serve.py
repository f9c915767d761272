"""``reput serve``: the web console; no JVM."""

from __future__ import annotations

import stat
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.lines import print_json, print_line, say
from reput.cli.options import (
    BrokerOptions,
    Json,
    MaxBodyBytes,
    Output,
    StuckAfter,
    body_limit,
    check_seconds,
)
from reput.cli.stores import named_stores, stores_argument
from store.errors import ConfigError, NoLogError, StoreIOError, shown
from store.io.file_system import read_small_file
from store.io.user_path import given_path

if TYPE_CHECKING:
    from reput.console.brokers import Broker, BrokerSource
    from reput.console.security import ConsoleSettings

_SWITCH_SECONDS = 0.001  # a fifth of Python's: the event loop waits for threads that search
_END_SECONDS = 3.0  # after a signal; a read may hold up the orderly end, and a busy machine this
_TOKEN_MIN, _TOKEN_BYTES_MAX = 16, 4096


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The brokers to show."""

    stores: Annotated[
        list[str],
        stores_argument("[NAME=]STORE[:OUTPUT]…", several="brokers are shown side by side"),
    ]
    output: Output = None


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Where to listen, and who may connect."""

    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="The port; 0 is any free one.", min=0, max=65535)] = 8080
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=given_path,
            help="A file whose one line is the password of HTTP Basic (any user name).",
        ),
    ] = None
    allow_remote: Annotated[
        bool,
        typer.Option(
            "--allow-remote", help="Listen beyond loopback without a token: anyone may read."
        ),
    ] = False
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name by which clients may address the console, such as that of a proxy "
            "(repeatable).",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ViewOptions(BrokerOptions):
    """How the stores are read."""

    max_body_bytes: MaxBodyBytes = None
    stuck_after: StuckAfter = 60.0


def serve(
    stores: StoreOptions, access: AccessOptions, view: ViewOptions, as_json: Json = False
) -> None:
    """Show stores in a web console, and serve their API.

    Read-only, beside a running broker or dispatch or on a copied store. Prints its URL and runs
    until it is stopped (Ctrl-C or SIGTERM).
    """
    from reput.cli.long_running import POLL_SECONDS, end_at_once, end_within, stop_signals
    from reput.console.app import create_app
    from reput.console.security import LOOPBACK_NAMES, ConsoleSettings
    from reput.console.server import listen
    from reput.console.server import serve as serve_app

    sources = _sources(stores, view)
    token = None if access.token_file is None else read_token(access.token_file)
    _check_remote(access)
    settings = ConsoleSettings(
        allowed_hosts=LOOPBACK_NAMES | {_host(h) for h in (access.host, *_names(access))},
        token=token,
        max_body_bytes=body_limit(view.max_body_bytes),
        stuck_after=check_seconds("--stuck-after", view.stuck_after),
    )
    sys.setswitchinterval(_SWITCH_SECONDS)
    with stop_signals() as stop:
        app = create_app(_brokers(sources, settings), settings)
        with listen(access.host, access.port) as listening:
            _announce(access, listening.getsockname()[1], as_json=as_json)

            def wait() -> None:
                _await_stop(stop, POLL_SECONDS)
                end_within(_END_SECONDS)

            serve_app(app, listening, wait)
    end_at_once()


def _await_stop(stop: threading.Event, poll_seconds: float) -> None:
    """Wait for a signal. Another thread may take it; the main one handles it when it wakes."""
    while not stop.wait(poll_seconds):
        pass


def _announce(access: AccessOptions, port: int, *, as_json: bool) -> None:
    host = f"[{access.host}]" if ":" in access.host else access.host
    url = f"http://{host}:{port}/"
    needs_token = access.token_file is not None
    if as_json:
        print_json({"event": "serve", "url": url, "needs_token": needs_token})
    else:
        token = " (the password is the line of --token-file, with any user name)"
        print_line(f"serving {url}{token if needs_token else ''}")


def _sources(stores: StoreOptions, view: ViewOptions) -> list[BrokerSource]:
    """Return the brokers to show. Raises ConfigError for a malformed or repeated one."""
    from reput.console.brokers import BrokerSource

    return [
        BrokerSource(s.name, s.store_root, s.output, view.broker_conf, view.broker_version)
        for s in named_stores(stores.stores, view.broker_conf, stores.output)
    ]


def _brokers(sources: list[BrokerSource], settings: ConsoleSettings) -> list[Broker]:
    """Open the stores. One without a commit log is a problem to show, if others have one.

    Raises NoLogError if none has, and whatever else keeps a store from being read.
    """
    from reput.console.brokers import Broker

    missing: dict[str, NoLogError] = {}
    brokers = []
    for source in sources:
        try:
            brokers.append(Broker(source, settings))
        except NoLogError as e:
            missing[source.name] = e
            brokers.append(Broker(source, settings, may_lack_log=True))
    if len(missing) == len(brokers):
        raise next(iter(missing.values()))
    for name, error in missing.items():
        say(f"warning: {name}: {error}")
    return brokers


def read_token(path: Path) -> str:
    """Read the token. Raises ConfigError if it is short, or if others may read it; StoreIOError."""
    try:
        data, mode = read_small_file(path, _TOKEN_BYTES_MAX), path.stat().st_mode
    except OSError as e:
        raise StoreIOError("read --token-file", path, e) from e
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise ConfigError(f"--token-file {path} is open to all users (chmod o= {path})")
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        lines = []
    if len(lines) != 1 or not lines[0].isprintable():
        raise ConfigError(f"--token-file {path} does not hold one line of text")
    token = lines[0].strip()
    if len(token) < _TOKEN_MIN:
        raise ConfigError(f"--token-file {path}: the token has less than {_TOKEN_MIN} characters")
    return token


def _check_remote(access: AccessOptions) -> None:
    from reput.console.security import is_loopback

    if is_loopback(access.host) or access.token_file is not None or access.allow_remote:
        return
    raise ConfigError(
        f"--host {access.host} is reached from other machines: give --token-file FILE (a password "
        "for HTTP Basic), or --allow-remote to let anyone read"
    )


def _names(access: AccessOptions) -> list[str]:
    return access.allowed_host or []


def _host(name: str) -> str:
    """Return a name as a Host header has it, without brackets or port. Raises ConfigError."""
    from reput.console.security import host_name

    found = host_name(f"[{name}]" if name.count(":") > 1 and "[" not in name else name)
    if not found:
        raise ConfigError(f"{shown(name)} is not a host name (--host, --allowed-host)")
    return found
