"""Check the sizes of functions, files and folders in the packages, and of files in the tests."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
FOLDER_MODULES_MAX = 14
# Each command is a module.
UNLIMITED_FOLDERS = {Path("reput/cli")}
PACKAGES = ("store", "checkpoints", "streaming", "reput", "pyspark_reput")
TESTS = Path("tests")


def main() -> int:
    """Print what exceeds a limit; return 1 if anything does."""
    found = [text for name in PACKAGES for text in excesses(Path(name))]
    found += [text for module in sorted(TESTS.rglob("*.py")) for text in long_files(module)]
    for text in found:
        print(text)
    return 1 if found else 0


def excesses(package: Path) -> Iterator[str]:
    """Describe what exceeds a limit in a package and its folders."""
    folders = sorted({path.parent for path in package.rglob("*.py")})
    for folder in folders:
        modules = sorted(folder.glob("*.py"))
        if len(modules) > FOLDER_MODULES_MAX and folder not in UNLIMITED_FOLDERS:
            yield f"{folder}: {len(modules)} modules, more than {FOLDER_MODULES_MAX}"
        for module in modules:
            yield from long_files(module)
            yield from long_functions(module)


def long_files(module: Path) -> Iterator[str]:
    """Describe a module that is too long."""
    lines = module.read_text("utf-8").count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{module}: {lines} lines, more than {FILE_LINES_MAX}"


def long_functions(module: Path) -> Iterator[str]:
    """Describe the functions of a module that are too long."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            place = f"{module}:{node.lineno}"
            yield f"{place}: {node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"


if __name__ == "__main__":
    sys.exit(main())
