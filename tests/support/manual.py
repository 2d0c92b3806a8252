"""The commands that the manual has people type: of README, docs and the tables of event types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from stoker.kit.event_types import register

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_FENCED = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_BEFORE = re.compile(r"^(sudo (-u \w+ )?)?(\.venv/bin/)?")
_COMMAND = re.compile(r"(stoker|systemctl|journalctl) \S")
# As the pages name a pipeline's file.
_FILES = re.compile(r"/etc/stoker/(NAME|fineweb)\.yaml|\bmine\.yaml")


def commands() -> dict[str, str]:
    """Each command once, as it is written but for `sudo`, and its page; FILE is the pipeline's file."""
    found: dict[str, str] = {}
    for page, text in _texts():
        fenced = [line.split("  #")[0] for block in _FENCED.findall(text) for line in _lines(block)]
        inline = re.findall(r"`([^`]+)`", _BLOCK.sub("", text))
        for line in (*fenced, *(one for words in inline for one in words.split("; "))):
            command = _BEFORE.sub("", " ".join(line.replace("\\|", "|").split()))
            if _COMMAND.match(command):
                found.setdefault(_FILES.sub("FILE", command), page)
    return found


def filled(command: str, values: Mapping[str, str]) -> str:
    """Returns the command without what is optional, with what stands for the reader's own filled in."""
    command = re.sub(r"\s*\[[^]]*\]", "", command)
    words = "|".join(map(re.escape, sorted(values, key=len, reverse=True)))
    return re.sub(rf"(?<!\w)({words})(?!\w)(\.\.\.)?", lambda found: values[found[1]], command)


def _texts() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        yield str(page.relative_to(ROOT)), page.read_text()
    for name, of in register().items():
        yield f"the event {name}", f"{of.meaning} {of.check} {of.do}"


def _lines(block: str) -> list[str]:
    return block.replace("\\\n", " ").splitlines()
