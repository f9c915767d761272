"""The private API of numba is in one module, which refuses a release without it."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]


def test_no_other_module_imports_numba_core() -> None:
    found = [
        path.relative_to(PROJECT).as_posix()
        for package in ("store", "checkpoints", "streaming")
        for path in sorted((PROJECT / package).rglob("*.py"))
        if "numba.core" in path.read_text("utf-8")
    ]
    assert found == ["store/kernels/numba_private.py"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            "import numba.core as c; del c.cgutils; sys.modules['numba.core.cgutils'] = None",
            "cgutils",
        ),
        ("from numba.core import options; del options.DefaultOptions._nrt", "no option _nrt"),
        (
            "from numba.core import caching; del caching.Cache._load_overload",
            "its cache has no _load_overload",
        ),
    ],
)
def test_a_release_without_it_is_refused_in_one_line(change: str, says: str) -> None:
    code = f"import sys; {change}; import store.kernels.numba_private"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("ImportError: numba ")
    assert "is not supported: " in last
    assert says in last


def test_a_cached_kernel_is_loaded_without_the_registries_of_numba() -> None:
    code = """if True:
        from store.commitlog.scanner import load_kernels
        from store.kernels.scan import scan
        load_kernels()
        print(len(scan.overloads), len(scan.targetctx._registries))
    """
    for _ in range(2):  # the first process fills the cache if it is empty
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout == "1 0\n"


INTERRUPTED = """
import os, signal, threading
import numpy as np
from store.config import load_config
from store.commitlog.scanner import scan_rules
from store.kernels.log_walk import walk
from pathlib import Path

rules, cuts = scan_rules(load_config(Path("none"))), np.empty(4, np.int64)
view = np.zeros(100, np.uint8)
view.flags.writeable = False
walk(view, (0, 0, 100), rules, True, (cuts, 100))
walking = threading.Event()

def interrupt():
    for _ in range(1000):
        walking.wait()
        walking.clear()
        os.kill(os.getpid(), signal.SIGINT)

thread, interrupts = threading.Thread(target=interrupt), 0
thread.start()
while interrupts < 1000:
    try:
        walking.set()
        while True:
            walk(view, (0, 0, 100), rules, True, (cuts, 100))
    except KeyboardInterrupt:
        interrupts += 1
print(interrupts)
"""


def test_ctrl_c_during_a_kernel_raises_keyboard_interrupt() -> None:
    """It ended the process with SIGSEGV, within some tens of interrupts."""
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1000\n"), done.stderr[-2000:]
