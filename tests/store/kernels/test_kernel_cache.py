"""Kernels whose cache cannot be written: loaded from a copy, or compiled with a warning."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import store

PROGRAM = """
import numpy
from store.kernels.crc32 import crc32
print(crc32(numpy.frombuffer(b"123456789", numpy.uint8), 0, 9))
"""


def test_kernels_load_without_a_writable_cache(tmp_path: Path) -> None:
    (source,) = store.__path__
    kernels = tmp_path / "store" / "kernels"
    shutil.copytree(source, tmp_path / "store", ignore=shutil.ignore_patterns("__pycache__"))
    (kernels / "__pycache__").touch()  # even root cannot write below a file
    nowhere = {"HOME": str(kernels / "jit.py"), "XDG_CACHE_HOME": str(kernels / "jit.py")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env=os.environ | nowhere | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{0xCBF43926}\n"), done.stderr
    assert done.stderr.count("cannot be written") == 1


READ_ONLY = """
import os
os.access = lambda path, mode: "store/kernels" not in str(path)
"""


def test_a_read_only_cache_is_used_through_a_copy(tmp_path: Path) -> None:
    (source,) = store.__path__
    shutil.copytree(source, tmp_path / "store", ignore=shutil.ignore_patterns("__pycache__"))
    user = {"XDG_CACHE_HOME": str(tmp_path / "user"), "PYTHONPATH": str(tmp_path)}
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | user

    def run(program: str) -> str:
        command = [sys.executable, "-P", "-c", program]
        environment["NUMBA_DEBUG_CACHE"] = "1"
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == f"{0xCBF43926}"
        return done.stdout

    assert "data saved to" in run(PROGRAM)
    assert not (tmp_path / "user").exists()
    output = run(READ_ONLY + PROGRAM)
    assert f"data loaded from '{tmp_path}/user/reput/numba-" in output
    assert "saved" not in output
    assert run(READ_ONLY + PROGRAM) == output  # the copy is made once
    assert len(list((tmp_path / "user" / "reput").iterdir())) == 1


LOG_INFO = """
import logging
logging.basicConfig(format="%(message)s")
logging.getLogger("store.kernels").setLevel(logging.INFO)
"""


def test_compilation_is_logged_once_and_loading_is_not(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    program = f"{LOG_INFO}{PROGRAM}\nfrom store.kernels.java import is_blank\n"
    program += "is_blank(numpy.zeros(1, numpy.uint8), 0, 1)\n"

    def messages() -> str:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stderr

    assert messages() == "compiling kernels, once, about 20 s\n"
    assert messages() == ""


IMPORTED_BY_THREADS = """
import time
from concurrent.futures import ThreadPoolExecutor
import numba
from store.kernels.crc32 import crc32
from store.kernels.jit import kernel

njit = numba.njit

def slow_njit(**options):
    time.sleep(0.2)
    return njit(**options)

def define(after):
    time.sleep(after)
    return kernel(crc32.py_func)._cache.cache_path

numba.njit = slow_njit
with ThreadPoolExecutor(2) as pool:
    paths = set(pool.map(define, (0, 0.1)))
print(paths == {crc32._cache.cache_path}, repr(numba.config.CACHE_DIR))
"""


def test_threads_that_import_kernels_at_once_use_the_cache(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    environment["PYTHONPATH"] = str(Path(store.__path__[0]).parent)
    command = [sys.executable, "-P", "-c", IMPORTED_BY_THREADS]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True ''\n"
    assert list(tmp_path.iterdir()) == []
