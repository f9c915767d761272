"""Forks processes that mirror a store, to be killed; reads orders as JSON lines from its input.

For each order a child is forked, whose id is written to standard output. The child writes ``ready``
when it has read its position, and ``done`` when the log has ended. With ``step`` it kills itself at
the n-th call of a function: ``[module, name, "before" or "after", n]``.
"""

import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from streaming.queries.mirror_query import prepare_mirror
from tests.integration.mirror.mirroring import options_for, run_here


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(module: str, name: str, when: str, count: int) -> None:
    """Kill this process at a call of a function."""
    owner: Any = importlib.import_module(module)
    for part in name.split(".")[:-1]:
        owner = getattr(owner, part)
    last = name.rpartition(".")[2]
    real, calls = getattr(owner, last), []

    def killing(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if when == "before" and len(calls) == count:
            die()
        if when == "during" and len(calls) == count:
            threading.Timer(0.002, die).start()
        result = real(*args, **kwargs)
        if when == "after" and len(calls) == count:
            die()
        return result

    setattr(owner, last, killing)


def child(order: dict[str, Any], out: int) -> None:
    """Mirror as an order says."""
    if order.get("step"):
        kill_at(*order["step"])
    options = options_for(
        order["bootstrap"], order["name"], transaction_bytes=order["transaction_bytes"]
    )
    prepared = prepare_mirror(Path(order["store"]), options)
    os.write(out, b"ready\n")
    run_here(prepared, max_bytes=order["max_bytes"], chunk_bytes=order["chunk_bytes"])
    prepared.close()
    os.write(out, b"done\n")


def main() -> None:
    """Serve orders until the input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                child(json.loads(line), sys.stdout.fileno())
            except BaseException as e:  # noqa: BLE001 - whatever it is, it is told
                os.write(sys.stdout.fileno(), f"failed {e!r}\n".replace("\n", " ").encode() + b"\n")
            finally:
                os._exit(0)
        os.write(sys.stdout.fileno(), f"pid {pid}\n".encode())


if __name__ == "__main__":
    main()
