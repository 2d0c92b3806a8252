"""Every event word that the code records is in the register, and the register has no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from stoker.kit.event_words import WORDS
from stoker.kit.terminal import SENTENCES

ROOT = Path(__file__).parents[2]
# What records an event, with the places of its words: a position, or a keyword.
RECORDERS: dict[str, tuple[int | str, ...]] = {
    "record": (0,),
    "_record": (0,),
    "raise_": (0,),
    "clear": (0, "tell"),
    "event": (0,),
    "Alert": (0,),
    "AlertOver": (0, "tell"),
    "warn_once": (0,),
    "_record_silence": (0,),
    "begin": (1,),
    "end": (1,),
    "_pause": (1,),
    "Change": (1,),
}
# Words that pass through a table or a variable, by the place of the table.
TABLES = {
    "daemons/stokerd/sharding/activities/disks.py": ("AWAY",),
    "daemons/stokerd/sharding/activities/moves.py": ("MOVES",),
}
WORD = re.compile(r"reloaded|[a-z]+(_[a-z]+)+")
REGISTERED = {word for words in WORDS.values() for word in words}


def sources() -> Iterator[Path]:
    for package in ("lib/stoker/kit", "lib/stoker/corpus/fetch", "lib/stoker/supervise", "daemons"):
        yield from sorted((ROOT / package).rglob("*.py"))


def words_in(node: ast.AST) -> Iterator[str]:
    """Yields the words that an expression can be, an f-string as a pattern."""
    match node:
        case ast.Constant(value=str(text)) if WORD.fullmatch(text):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(part.value if isinstance(part, ast.Constant) else ".+" for part in parts)
        case ast.IfExp(body=body, orelse=otherwise):
            yield from words_in(body)
            yield from words_in(otherwise)


def assigned(tree: ast.AST) -> dict[str, list[ast.AST]]:
    """Returns the expressions that are assigned to each name, also as one of several."""
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        value = node.value
        values = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(value)
            elif isinstance(target, ast.Tuple):
                for each in values:
                    for name, part in zip(target.elts, getattr(each, "elts", ()), strict=False):
                        found.setdefault(getattr(name, "id", ""), []).append(part)
    return found


def recorded(tree: ast.AST, tables: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yields line and word of each event that a module records."""
    values = assigned(tree)
    for table in tables:
        yield from (
            (0, word) for value in values[table] for part in ast.walk(value) for word in words_in(part)
        )
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        for place in RECORDERS.get(name, ()):
            given = node.args[place : place + 1] if isinstance(place, int) else []
            given += [keyword.value for keyword in node.keywords if keyword.arg == place]
            for each in given:
                known = values.get(each.id, []) if isinstance(each, ast.Name) else [each]
                yield from ((node.lineno, word) for value in known for word in words_in(value))


def test_every_recorded_word_is_registered_and_every_registered_word_is_recorded() -> None:
    seen: set[str] = set()
    for path in sources():
        place = str(path.relative_to(ROOT))
        for line, word in recorded(ast.parse(path.read_text()), TABLES.get(place, ())):
            matching = {one for one in REGISTERED if re.fullmatch(word, one)}
            assert matching, f"{place}:{line} records {word}, which kit/event_words.py lacks"
            seen |= matching
    assert REGISTERED - seen == set(), "in the register, but nowhere recorded"


def test_the_terminal_has_sentences_for_known_words_alone() -> None:
    logged = {"daemon_ready", "download_retry", "drained", "progress", "tokenizer_training"}
    assert SENTENCES.keys() - REGISTERED - logged == set()


def test_every_word_has_a_meaning() -> None:
    for words in WORDS.values():
        assert all(meaning and not meaning.endswith(".") for meaning in words.values())
