"""Kernels are compiled without a cache where none can be written, and say so."""

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


def test_kernels_load_where_no_cache_can_be_written(tmp_path: Path) -> None:
    (source,) = store.__path__
    kernels = tmp_path / "store" / "kernels"
    shutil.copytree(source, tmp_path / "store", ignore=shutil.ignore_patterns("__pycache__"))
    (kernels / "__pycache__").touch()  # whoever may write anywhere cannot write below a file
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
