"""Real prose from this machine: docstrings and documentation files of the Python installation and `.venv`."""

from __future__ import annotations

import ast
import hashlib
import os
import random
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

SHORTEST_DOCUMENT_CHARS = 200
LONGEST_DOCUMENT_CHARS = 60_000
LARGEST_FILE_BYTES = 2_000_000
WANTED = {".py", ".md", ".rst", ".txt"}
CHARS_PER_QUOTE = (
    3000  # parsing is what takes the time: a file with fewer docstrings than this is passed over
)
NOT_LETTERS = re.compile(r"[^A-Za-z ]+")
PROSE_SHARE = 0.7  # of the characters; below it a text is a table, a list of names or code


def _documentation_files() -> list[Path]:
    roots = {Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib", "platlib")}
    found: set[Path] = set()
    for root in sorted(roots):
        for folder, below, names in os.walk(root):
            # The system's own site-packages lie inside the standard library; they are not this project's.
            below[:] = [
                name for name in below if name not in {"site-packages", "dist-packages", "__pycache__"}
            ]
            found.update(Path(folder, name) for name in names if Path(name).suffix in WANTED)
    return sorted(found)


def _docstrings(source: str) -> Iterator[str]:
    if source.count('"""') * CHARS_PER_QUOTE < len(source):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes are not news here
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return  # a template or a test of the parser itself: not prose
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text
        if isinstance(node, ast.Module | ast.ClassDef):  # what lies deeper rarely has a docstring
            waiting.extend(node.body)


def _is_prose(text: str) -> bool:
    return len(text) >= SHORTEST_DOCUMENT_CHARS and len(NOT_LETTERS.sub("", text)) / len(text) >= PROSE_SHARE


def _texts(path: Path) -> Iterator[str]:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_FILE_BYTES:
            return
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    if path.suffix == ".py":
        yield from _docstrings(source)
    else:
        for start in range(0, len(source), LONGEST_DOCUMENT_CHARS):
            yield source[start : start + LONGEST_DOCUMENT_CHARS]


def gather(wanted_bytes: int, seed: int, progress: Callable[[int], None]) -> list[tuple[str, str]]:
    """Distinct documents as (where it stands, text), a seeded sample, until wanted_bytes of UTF-8 are found.

    progress hears the bytes found so far after every file. Fewer bytes come back where the machine holds
    less; the caller decides whether that is enough.
    """
    files = _documentation_files()
    random.Random(seed).shuffle(files)
    seen: set[bytes] = set()
    documents: list[tuple[str, str]] = []
    size = 0
    for path in files:
        for raw in _texts(path):
            text = re.sub(r"[ \t]+\n", "\n", raw).strip()
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
            if digest in seen or not _is_prose(text):
                continue
            seen.add(digest)
            try:
                size += len(text.encode("utf-8"))
            except UnicodeEncodeError:
                continue
            documents.append((_where(path), text))
        progress(size)
        if size >= wanted_bytes:
            break
    return documents


def _where(path: Path) -> str:
    for entry in sorted(map(Path, sys.path), key=lambda p: len(p.parts), reverse=True):
        if entry.parts and path.is_relative_to(entry):
            return path.relative_to(entry).as_posix()
    return path.name
