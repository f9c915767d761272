"""The public names: each of them can be imported, and nothing heavy is imported before."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import reput
import store
import streaming

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = [
    *REPOSITORY.glob("*.md"),
    *(path for kind in ("*.md", "*.ipynb") for path in (REPOSITORY / "docs").rglob(kind)),
    *(REPOSITORY / "ops").rglob("*.md"),
]
# Of a code block, or of a string in a notebook's cell.
IMPORT = re.compile(r'^(?: *")?(from|import) ([a-z_.]+)(?: import ([\w, ]+))?', re.MULTILINE)


@pytest.mark.parametrize("package", [store, streaming, reput], ids=lambda p: p.__name__)
def test_every_public_name_can_be_imported(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert [name for name in names if getattr(package, name).__name__ != name] == []


def test_the_package_reput_has_the_public_names_of_the_others() -> None:
    assert sorted(reput.__all__) == sorted({*store.__all__, *streaming.__all__})


def test_the_import_of_the_package_loads_no_spark_no_kernels_and_no_kafka() -> None:
    code = "import sys, reput; print({'pyspark', 'numba', 'kafka', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_documents_import_public_names_of_the_package_reput_alone() -> None:
    found = [i for path in DOCUMENTS for i in IMPORT.findall(path.read_text("utf-8"))]
    ours = {"reput", "store", "checkpoints", "streaming", "pyspark_reput"}
    imports = [
        (kind, module, names) for kind, module, names in found if module.split(".")[0] in ours
    ]
    assert {(kind, module) for kind, module, _ in imports} == {("from", "reput")}
    names = {name for *_, names in imports for name in names.split(", ")}
    assert names <= set(reput.__all__)
    assert len(names) > 5
