"""See that functions, files and folders of the packages stay small enough to survey."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
FOLDER_MODULES_MAX = 14
# A command is a module of its own, however many commands there are.
UNLIMITED_FOLDERS = {Path("streaming/cli")}
PACKAGES = ("store", "checkpoints", "streaming")


def main() -> int:
    """Print what is beyond a limit; return 1 if anything is."""
    found = [text for name in PACKAGES for text in beyond_limits(Path(name))]
    for text in found:
        print(text)
    return 1 if found else 0


def beyond_limits(package: Path) -> Iterator[str]:
    """Say what is beyond a limit, in a package and below it."""
    folders = sorted({path.parent for path in package.rglob("*.py")})
    for folder in folders:
        modules = sorted(folder.glob("*.py"))
        if len(modules) > FOLDER_MODULES_MAX and folder not in UNLIMITED_FOLDERS:
            yield f"{folder}: {len(modules)} modules, more than {FOLDER_MODULES_MAX}"
        for module in modules:
            yield from beyond_limits_in(module)


def beyond_limits_in(module: Path) -> Iterator[str]:
    """Say what is beyond a limit in a module."""
    text = module.read_text("utf-8")
    lines = text.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{module}: {lines} lines, more than {FILE_LINES_MAX}"
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            place = f"{module}:{node.lineno}"
            yield f"{place}: {node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"


if __name__ == "__main__":
    sys.exit(main())
