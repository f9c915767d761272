"""The imports that the build rewrites, those that it refuses, and names of modules in strings."""

import ast
import re
from pathlib import Path

import pytest

from hatch_build import parents_of, rewrite_imports
from tests.support.environments import FOLDERS, REPOSITORY

PARENTS = dict.fromkeys(FOLDERS, "reput")
MODULE_NAME = re.compile(r"^(store|checkpoints|streaming|reput|pyspark_reput)\.([a-z_]+)")


def rewritten(source: str) -> str:
    return rewrite_imports(source.encode(), PARENTS, "m.py").decode()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from store import layout", "from reput.store import layout"),
        ("from store.x import (\n    y,\n)\n", "from reput.store.x import (\n    y,\n)\n"),
        ("from  store.x  import y  # store.x", "from  reput.store.x  import y  # store.x"),
        ("import store", "from reput import store"),
        ("import store as s, streaming", "from reput import store as s, streaming"),
        (
            "if TYPE_CHECKING:\n    from checkpoints.output import R\n",
            "if TYPE_CHECKING:\n    from reput.checkpoints.output import R\n",
        ),
        (
            "def f():\n\timport store; from store.a import b\n",
            "def f():\n\tfrom reput import store; from reput.store.a import b\n",
        ),
        (
            "é = 'ü'; from store import java\r\nimport store\r\n",
            "é = 'ü'; from reput.store import java\r\nfrom reput import store\r\n",
        ),
    ],
)
def test_imports_of_the_folders_are_rewritten_in_place(source: str, expected: str) -> None:
    assert rewritten(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "from storeroom import a\nimport storeroom.b, os.path\n",
        "from reput.store import a\nfrom reput import store\n",
        "from . import store\nfrom .store import a\nfrom .. import streaming\n",
        "text = 'import store'\n# import store\nstore = f'{store.x}'\n",
        '"""\nfrom store import a\n"""\n',
    ],
)
def test_everything_else_stays(source: str) -> None:
    assert rewritten(source) == source


@pytest.mark.parametrize("statement", ["import store.errors", "import os, store"])
def test_an_import_without_such_a_form_is_refused(statement: str) -> None:
    message = f"m.py:2: `{statement}`: write `from PACKAGE import MODULE` instead"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        rewritten(f"\n{statement}\n")


def test_a_module_name_on_another_line_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^m\.py:1: write `from store\.x import` on one line$"):
        rewritten("from \\\n    store.x import y\n")


def test_a_folder_keeps_its_name_inside_a_package() -> None:
    assert parents_of({"store": "a/b/store"}) == {"store": "a.b"}
    for place in ("store", "reput/shop"):
        with pytest.raises(ValueError, match="'store' must become PACKAGE/store"):
            parents_of({"store": place})


def test_no_string_names_a_module_of_the_project() -> None:
    """Such a name would be right in the checkout only: use `__package__` or `__name__`."""
    found = []
    for folder in (*FOLDERS, "reput", "pyspark_reput"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found += [f"{path}:{node.lineno}" for _ in named_modules(node.value)]
    assert found == []


def named_modules(text: str) -> list[Path]:
    named = MODULE_NAME.match(text)
    if named is None:
        return []
    module = Path(REPOSITORY, named[1], named[2])
    return [path for path in (module, module.with_suffix(".py")) if path.exists()]
