"""Every event that the code records is a row of the tables of event types, and the tables have no other."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.kit import event_types as kinds
from stoker.kit.event_types import event_type, event_types, message_id, register, table
from stoker.store.layout import DAEMONS, STAGE_SHARD
from stokerd.sharding.activities import ACTIVITIES

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
    "record_silence": (0,),
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
LOGS = r"(.*log\.)?(info|warning|error|critical)"  # what writes to the log alone
WORD = re.compile(r"reloaded|[a-z]+(_[a-z]+)+")
REGISTER = register()
REGISTERED = {word for daemon in DAEMONS for word in event_types(daemon)}
LOGGED = REGISTER.keys() - REGISTERED


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


def recorded(tree: ast.AST) -> Iterator[tuple[ast.Call, int | str, str]]:
    """Yields each call that records an event, the place of its word, and the word or a pattern of it."""
    values = assigned(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for place in RECORDERS.get(called(node), ()):
            given = node.args[place : place + 1] if isinstance(place, int) else []
            given += [keyword.value for keyword in node.keywords if keyword.arg == place]
            for each in given:
                known = values.get(each.id, []) if isinstance(each, ast.Name) else [each]
                yield from ((node, place, word) for value in known for word in words_in(value))


def called(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def matching(word: str, place: str) -> set[str]:
    found = {word} & REGISTERED or {one for one in REGISTERED if re.fullmatch(word, one)}
    assert found, f"{place} records {word}, which no table of kit/event_types has"
    return found


@functools.cache
def calls() -> list[tuple[str, ast.Call, int | str, set[str]]]:
    """Returns place, call, the place of its word, and the words of each call that records an event."""
    found = []
    for path in sources():
        file = path.relative_to(ROOT)
        for node, place, word in recorded(parsed(path)):
            found.append((f"{file}:{node.lineno}", node, place, matching(word, f"{file}:{node.lineno}")))
    return found


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_every_recorded_word_is_registered_and_every_registered_word_is_recorded() -> None:
    seen = {word for *_, words in calls() for word in words}
    for file, tables in TABLES.items():
        values = assigned(ast.parse((ROOT / file).read_text()))
        parts = (part for table in tables for value in values[table] for part in ast.walk(value))
        for part in parts:
            for word in words_in(part):
                seen |= matching(word, file)
    assert REGISTERED - seen == set(), "in a table, but nowhere recorded"


def test_each_kind_of_job_of_the_stage_shard_loop_has_the_words_that_are_made_of_its_name() -> None:
    words = {f"{kind}_failed" for kind in ACTIVITIES}
    assert words - event_types(STAGE_SHARD).keys() == set()


def test_every_logged_word_is_registered_at_its_level() -> None:
    seen = set()
    for path in (*sources(), *(ROOT / "lib" / "stoker" / "observe").glob("*.py")):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call) or not re.fullmatch(LOGS, ast.unparse(node.func)):
                continue
            for word in (
                words_in(node.args[0]) if node.args and isinstance(node.args[0], ast.Constant) else ()
            ):
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert word in REGISTER, f"{place} logs {word}, which no table of kit/event_types has"
                assert called(node) == REGISTER[word].level, place
                seen.add(word)
    assert LOGGED - seen <= {"progress", "drained", "interrupted", "fetcher_stacks"}


def test_a_text_names_fields_that_every_such_event_has() -> None:
    for place, node, where, words in calls():
        if where == "tell" or called(node) in ("clear", "AlertOver", "Alert", "Change"):
            continue
        has = {keyword.arg for keyword in node.keywords}
        if None in has:
            continue
        has |= {"path", "reason"} if called(node) == "warn_once" else set()
        has |= {"path"} if called(node) == "end" else set()
        for word in words if len(words) == 1 else ():
            entry = REGISTER[word]
            wanted = set(re.findall(r"\{(\w+)\}", entry.meaning + entry.check + entry.do))
            assert wanted <= has, f"{place}: {word} has no {wanted - has}"


# A row that the code records as a warning in some cases, where its level in the table is info.
WORSE_AT_TIMES = {"source_renewed"}


def test_a_warning_says_what_to_check_and_to_do_and_information_asks_for_nothing() -> None:
    for name, row in REGISTER.items():
        assert row.level in ("info", "warning", "error", "critical"), name
        assert row.headline and not row.headline.endswith("."), name
        is_bad = row.level != "info"
        for text in filter(None, (row.meaning, row.check, row.do)):
            assert text[-1:] in (".", "?"), f"{name} has no whole sentence: {text}"
            assert len(text) <= 200, f"{name}: too long to be read at three in the morning"
        for text in (row.meaning, row.check, row.do) if is_bad else ():
            assert text, f"{name}: what it means, what to check and what to do are for a warning"
            assert not re.search("[Nn]othing|[Nn]o action", row.do), f"{name} is information"
        # An alert says when information is to be acted on: how long a run waits, say.
        assert is_bad or row.alert or name in WORSE_AT_TIMES or not row.do, f"{name} has something to do"
        assert not (is_bad and row.routine), name


def test_a_word_stands_in_one_table_and_a_former_word_leads_to_its_row() -> None:
    words = [(word, row) for name in kinds.TABLES for word, row in table(name).items()]
    assert len({word for word, _ in words}) == len(words)
    former = {old: row for _, row in words for old in row.was}
    assert former["launch_log_damaged"].word == "record_damaged"
    for old, row in former.items():
        assert event_type(old) is row and old not in REGISTERED | LOGGED
    assert all(set(row.daemons) <= set(DAEMONS) for row in table(kinds.COMMON).values())
    assert event_type("no_such_word") is None and event_types("audit") == {}


def test_message_ids_stay_as_they_are() -> None:
    assert message_id("disk_full") == "28b41ac5639b5f0584751802052f08b8", (
        "catalogs and filters of operators name it"
    )
    assert len({message_id(word) for word in REGISTER}) == len(REGISTER)


def test_the_catalog_is_what_the_tables_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from cataloglib import CATALOG, catalog

    assert CATALOG.read_text() == catalog(), "run scripts/catalog and commit what it writes"
