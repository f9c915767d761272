"""The pages name what exists: files, headings, sections of the format, metrics."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from reput.console.metrics.metric_names import FAMILIES
from tests.support.ops import OPS

ROOT = OPS.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("ops/**/*.md")]
PACKAGES = ("store", "checkpoints", "streaming", "reput", "tests")
ROW = re.compile(r"^\| `(reput_\w+)` \| (\w+) \|([^|]*)\| ([DMC ]+) \| ([^|]+) \|$", re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
SECTION = re.compile(r"^#+ (\d+(?:\.\d+)?)\.? ", re.MULTILINE)
PATH_AND_NAME = re.compile(r"^\| [^|]+ \|([^|]+)\|([^|]*)\|$", re.MULTILINE)


def test_every_metric_is_documented_with_its_type_and_labels() -> None:
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    rows = {name: (kind, labels.strip()) for name, kind, labels, _, _ in ROW.findall(text)}
    expected = {}
    for family in FAMILIES:
        labels = ["S"] if family.is_storage else []
        labels += [f"`{label}`" for label in family.labels]
        expected[family.name] = family.kind, ", ".join(labels)
    assert expected == rows


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for path, anchor in LINK.findall(page.read_text("utf-8")):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(f"{path}#{anchor}")
    assert not broken


def test_the_places_to_open_for_a_change_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text.split("\n## To change X, open Y\n")[1].split("\n## ")[0]
    rows = PATH_AND_NAME.findall(table)[1:]
    assert len(rows) >= 20
    for paths, name in rows:
        sources = [(ROOT / path).read_text("utf-8") for path in re.findall(r"`([^`]+\.py)`", paths)]
        assert sources
        for wanted in re.findall(r"`(\w+)`", name):
            assert any(re.search(rf"\b{wanted}\b", source) for source in sources), wanted


def test_the_modules_listed_for_each_folder_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| ((?:`[\w/]+/`(?:, )?)+) \| (.+) \|$", text, re.MULTILINE)
    assert len(rows) >= 20
    missing = [
        f"{folders}: {module}"
        for folders, modules in rows
        for module in re.findall(r"`(\w+\.py)`", modules)
        if not any((ROOT / f / module).exists() for f in re.findall(r"`([^`]+)`", folders))
    ]
    assert not missing


def test_every_cited_section_of_the_format_exists() -> None:
    sources = [*PAGES, *(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))]
    cited = set(re.findall(r"§(\d+(?:\.\d+)?)", _read(sources)))
    sections = set(SECTION.findall(_read((ROOT / "docs" / "format").glob("*.md"))))
    assert cited
    assert cited <= sections, cited - sections


def _read(paths: Iterable[Path]) -> str:
    return "\n".join(path.read_text("utf-8") for path in paths)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub derives them."""
    if page.suffix != ".md":
        return set()
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
