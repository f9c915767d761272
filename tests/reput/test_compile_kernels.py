"""Set-up compiles the kernels that the commands use."""

import json
import subprocess
import sys
from pathlib import Path

from reput.cli.demo_log import BROKER_CONF

_SIGNATURES = """
import json, sys
from numba.core.registry import CPUDispatcher
found = [
    f"{name}.{kernel}{signature}"
    for name, module in list(sys.modules.items()) if name.startswith("store.kernels.")
    for kernel, value in vars(module).items()
    if isinstance(value, CPUDispatcher) and value.__module__ == name
    for signature in value.signatures
]
print(json.dumps(found))
"""
_DISPATCH = """
import sys
from pathlib import Path
from store.config import load_config
from reput.cli import run
from reput.cli.demo_log import write_log
from tests.support.dispatching import dispatch_all
store, out = sys.argv[1:]
write_log(Path(store), 0.5)
dispatch_all(Path(store), Path(out), load_config(Path(store)))
assert run(["verify", store, "--output", out]) == 0
assert run(["recover", store, "--output", out]) == 0
assert run(["rebuild", store, "--output", out]) == 0
queue = ["--topic", "OrderTopic", "--queue", "0"]
assert run(["get", store, "--output", out, *queue, "--offset", "0"]) == 0
"""


def signatures(program: str, *arguments: str) -> set[str]:
    """Run a program; return the kernels that it called, with their argument types."""
    command = [sys.executable, "-c", program + _SIGNATURES, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_commands_call_no_kernel_that_set_up_has_not_compiled(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    (store / "broker.conf").write_text(BROKER_CONF)
    compiled = signatures("from reput.compile_kernels import compile_kernels as c; c()")
    used = signatures(_DISPATCH, str(store), str(tmp_path / "out"))
    assert len(used) > 5
    assert used - compiled == set()
