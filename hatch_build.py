"""The wheel's build hook: installed, the project has one import name, ``reput``.

``sources`` of the wheel (pyproject.toml) places the folders ``store``, ``checkpoints`` and
``streaming`` inside ``reput/``. This hook rewrites the import statements that name them, in every
module of the wheel: ``from store.x import y`` becomes ``from reput.store.x import y``, and
``import store`` becomes ``from reput import store``. No line is added or removed, so tracebacks of
the wheel and of a checkout have the same line numbers.
"""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FROM = re.compile(rb"from[ \t]+")
_IMPORT = b"import"


class OneImportName(BuildHookInterface[Any]):
    """Replaces the modules of a wheel by copies with rewritten imports."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the copies; an editable install uses the folders of the checkout as they are."""
        if version != "standard":
            return
        self._directory = tempfile.TemporaryDirectory(prefix="reput-wheel-")
        parents = parents_of(self.build_config.target_config["sources"])
        for file in self.build_config.builder.recurse_included_files():
            if not file.path.endswith(".py"):
                continue
            source = Path(file.path).read_bytes()
            rewritten = rewrite_imports(source, parents, file.relative_path)
            if rewritten != source:
                copy = Path(self._directory.name, file.distribution_path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(rewritten)
                copy.chmod(Path(file.path).stat().st_mode)
                build_data["force_include"][str(copy)] = file.distribution_path

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the copies."""
        del build_data, artifact_path
        if version == "standard":
            self._directory.cleanup()


def parents_of(sources: Mapping[str, str]) -> dict[str, str]:
    """Map each folder that the wheel moves to the package that it becomes a part of."""
    parents = {}
    for folder, place in sources.items():
        parent, _, name = place.rpartition("/")
        if name != folder or not parent:
            raise ValueError(f"sources: {folder!r} must become PACKAGE/{folder}, not {place!r}")
        parents[folder] = parent.replace("/", ".")
    return parents


def rewrite_imports(source: bytes, parents: Mapping[str, str], path: str) -> bytes:
    """Return a module's source with the imports of the moved folders rewritten, line by line.

    Raises ValueError for an import that has no such form.
    """
    lines = source.splitlines(keepends=True)
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        line = lines[node.lineno - 1]
        for begin, end, text in _edits(node, line, parents, f"{path}:{node.lineno}"):
            lines[node.lineno - 1] = line[:begin] + text + line[end:]
    return b"".join(lines)


def _edits(
    node: ast.Import | ast.ImportFrom, line: bytes, parents: Mapping[str, str], place: str
) -> Iterator[tuple[int, int, bytes]]:
    """Yield what replaces which bytes of the line at which a statement begins."""
    at = node.col_offset  # in bytes of UTF-8
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        parent = parents.get(module.partition(".")[0])
        if node.level or parent is None:
            return
        word = _FROM.match(line, at)
        if word is None or not line.startswith(module.encode(), word.end()):
            raise ValueError(f"{place}: write `from {module} import` on one line")
        yield word.end(), word.end(), f"{parent}.".encode()
        return
    names = [alias.name for alias in node.names]
    moved = {parents[top] for name in names if (top := name.partition(".")[0]) in parents}
    if not moved:
        return
    if len(moved) > 1 or not parents.keys() >= set(names):
        statement = ast.unparse(node)
        raise ValueError(f"{place}: `{statement}`: write `from PACKAGE import MODULE` instead")
    yield at, at + len(_IMPORT), f"from {moved.pop()} import".encode()
