"""What README and the pages promise of themselves: tables are those of the code, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def _anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_reference_pages_are_what_the_code_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from docslib import pages

    for path, text in pages().items():
        assert path.read_text() == text, "run scripts/docs and commit what it writes"


def test_each_link_of_the_pages_leads_to_a_file_and_a_heading_that_exist() -> None:
    dead = []
    for page in PAGES:
        for link in _LINK.findall(page.read_text()):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if "://" in link:
                continue
            if not target.exists() or (anchor and anchor not in _anchors(target)):
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert dead == []


def test_the_tests_that_prove_each_promise_exist() -> None:
    named = re.findall(r"`(?:tests/\w+/)?(test_\w+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 30
    assert set(named) <= {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
