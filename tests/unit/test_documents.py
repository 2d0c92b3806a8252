"""What README and the pages promise of themselves: each command is listed, each link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from stoker.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "deploy/systemd/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def _anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_page_of_commands_has_every_command() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    assert [name for name in COMMANDS if not re.search(rf"`stoker {name}\b", page)] == []


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
