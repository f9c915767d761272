"""Which tests share a process: those of the Spark session, of a golden store, of real servers.

A pytest-xdist scheduler sees only test ids, so the fixtures of a test are read from its source.
"""

import ast
import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

_TESTS = Path(__file__).parents[1]
_STORES = {path.name.removesuffix(".tar.xz") for path in (_TESTS / "golden").glob("*.tar.xz")}


class GroupScheduling(LoadScopeScheduling):
    """Hands out groups of tests, the largest first; any other test is a group of its own."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """Return the group of a test: one JVM overall; a golden store or a server exists once."""
    path, _, rest = nodeid.partition("::")
    if path.startswith("tests/integration/"):
        return path
    name, _, params = rest.partition("[")
    if name in spark_tests(path):
        return "spark"
    stores = _STORES & set(re.findall(r"g\d+b?|v-[a-z0-9-]+-\d\.\d\.\d", params))
    return min(stores) if stores else nodeid


@cache
def spark_tests(path: str) -> set[str]:
    """Return the functions of a module that use the fixture `spark`, directly or indirectly."""
    needs: dict[str, set[str]] = {}
    for module in (_TESTS / "support" / "sessions.py", _TESTS.parent / path):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                needs[node.name] = {a.arg for a in node.args.args + node.args.kwonlyargs}
    found = {"spark"}
    while more := {name for name, used in needs.items() if used & found} - found:
        found |= more
    return found
