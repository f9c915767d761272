"""Which tests share a process: of a Spark session, a golden store, servers, an installed wheel.

A pytest-xdist scheduler sees only test ids, so the fixtures of a test are read from its source.
"""

import ast
import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_TESTS = Path(__file__).parents[1]
_STORES = {path.name.removesuffix(".tar.xz") for path in (_TESTS / "golden").glob("*.tar.xz")}


# Handed out before all others, because they take minutes.
LONGEST = tuple(
    f"tests/integration/{name}.py"
    for name in (
        "test_compose",
        "test_rescue",
        "mirror/test_mirror_kills",
        "mirror/test_mirror_errors",
        "mirror/test_mirror_cli",
    )
)
# About half of the time of tests/streaming/sources.
HALF_OF_SOURCES = ("test_documented.py", "test_many_stores.py", "test_queue_offsets.py")


class GroupScheduling(LoadScopeScheduling):
    """Hands out groups of tests, the largest first; any other test is a group of its own."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        longest = next((group for group in LONGEST if group in self.workqueue), None)
        if longest is not None:
            self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)


def group_of(nodeid: str) -> str:
    """Return the group of a test: three for Spark; a store, a server or a wheel exists once.

    A process keeps its Spark session, so two processes start two JVMs.
    """
    path, _, rest = nodeid.partition("::")
    if path.startswith("tests/installed/"):
        return "installed"
    name, _, params = rest.partition("[")
    if path.startswith("tests/integration/"):
        # A module has a broker for each version that it tests.
        return f"{path}[{params}" if re.fullmatch(r"\d+\.\d+\.\d+\]", params) else path
    if name in spark_tests(path):
        if not path.startswith("tests/streaming/sources/"):
            return "spark"
        return "spark-stores" if path.endswith(HALF_OF_SOURCES) else "spark-sources"
    stores = _STORES & set(re.findall(r"g\d+b?|v-[a-z0-9-]+-\d\.\d\.\d", params))
    return min(stores) if stores else nodeid


@cache
def spark_tests(path: str) -> set[str]:
    """Return the functions of a module that use the fixture `spark`, directly or indirectly."""
    needs: dict[str, set[str]] = {}
    used_by_all: set[str] = set()
    for module in (_TESTS / "support" / "sessions.py", _TESTS.parent / path):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                needs[node.name] = {a.arg for a in node.args.args + node.args.kwonlyargs}
                if any("autouse=True" in ast.unparse(d) for d in node.decorator_list):
                    used_by_all.add(node.name)
    found = {"spark"}
    while more := {name for name, used in needs.items() if used & found} - found:
        found |= more
    return set(needs) if used_by_all & found else found
