"""Reads a YAML file into plain values with their line numbers, without YAML's guesses at types.

YAML 1.1 turns `no` into false, `012` into ten, `12:30` into 750 and leaves `1e6` a string. Here a plain
(unquoted) scalar keeps its text, as Plain; the schema has the expected type and parses the text exactly.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

MOST_BYTES = 1 << 20
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_PREFIX = "tag:yaml.org,2002:"
_RESOLVER: Any = yaml.resolver.Resolver()

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, order=True)
class Mark:
    """The place of a key or item; `line` counts from 1, and is 0 for an environment variable."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Problem:
    """An error in the configuration: its place, its dotted key, and its text, with advice."""

    mark: Mark
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.mark}: {self.key}: {self.text}" if self.key else f"{self.mark}: {self.text}"


class Plain(str):
    """The text of an unquoted scalar."""

    __slots__ = ()

    def yaml_type(self) -> str:
        """Returns the type that YAML 1.1 would read: str, bool, int, float, timestamp, ..."""
        tag: str = _RESOLVER.resolve(yaml.ScalarNode, str(self), (True, False))
        return tag.removeprefix(_PREFIX)


@dataclass
class Document:
    """A mapping of mappings, lists, Plain, str and None, with the place of each key or item in `marks`."""

    values: dict[str, Any]
    marks: dict[KeyPath, Mark]
    problems: list[Problem] = field(default_factory=list)

    def mark(self, path: KeyPath) -> Mark:
        """Returns the place of a key path, or of the nearest key around it."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks[path]

    def problem(self, path: KeyPath, text: str) -> Problem:
        """Returns what is wrong with a path, with its mark."""
        return Problem(self.mark(path), dotted(path), text)

    def graft(self, path: KeyPath, other: Document) -> None:
        """Replaces the value at path by another document, whose errors still name its own file."""
        holder: Any = self.values
        for part in path[:-1]:
            holder = holder[part]
        holder[path[-1]] = other.values
        for inner, mark in other.marks.items():
            self.marks[path + inner] = mark
        self.problems.extend(
            Problem(p.mark, ".".join(filter(None, (dotted(path), p.key))), p.text) for p in other.problems
        )


class Unreadable(Exception):
    """The file is not a readable YAML mapping; `problem` holds reason and place."""

    def __init__(self, mark: Mark, text: str) -> None:
        self.problem = Problem(mark, "", text)
        super().__init__(str(self.problem))


def dotted(path: KeyPath) -> str:
    """Returns a path of keys and indices as text: `train.checkpoint.milestones[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_document(path: Path) -> Document:
    """Reads a YAML mapping from a file; raises Unreadable where the file holds none."""
    return parse_document(_read_text(path), str(path))


def _read_text(path: Path) -> str:
    top = Mark(str(path), 0)
    try:
        if path.is_dir():
            raise Unreadable(top, "is a directory; name the pipeline's YAML file")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        hint = "check the path" if isinstance(error, FileNotFoundError) else "check its permissions"
        if isinstance(error, PermissionError):
            hint = f"let this process's user (uid {os.geteuid()}) read it: chgrp it to its group, chmod 640"
        raise Unreadable(top, f"cannot be read: {error.strerror}; {hint}") from error
    if len(data) > MOST_BYTES:
        raise Unreadable(top, f"is larger than {MOST_BYTES >> 20} MiB; this is not a pipeline file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(
            Mark(str(path), line), f"byte {data[error.start]:#04x} is not UTF-8; save the file as UTF-8"
        ) from error


def parse_document(text: str, file: str) -> Document:
    """Parses a YAML mapping; collects bad keys in `problems`, raises Unreadable for other errors."""
    root = compose(text, file)
    if root is None:
        raise Unreadable(Mark(file, 1), "is empty; start from one of the examples in etc/")
    reader = _Reader(file)
    if not isinstance(root, yaml.MappingNode):
        raise Unreadable(reader.mark(root), "holds no keys; a pipeline file is lines of `key: value`")
    reader.marks[()] = reader.mark(root)
    return Document(reader.value(root, ()), reader.marks, reader.problems)


def parse_value(text: str, file: str) -> Document:
    """Parses a YAML value, such as an environment variable's text, into the key `value`."""
    root = compose(text, file)
    reader = _Reader(file)
    reader.marks = {(): Mark(file, 0), ("value",): Mark(file, 0)}
    value = None if root is None else reader.value(root, ("value",))
    return Document({"value": value}, reader.marks, reader.problems)


def compose(text: str, file: str) -> yaml.Node | None:
    """Returns the node tree of a YAML document; raises Unreadable with line and column."""
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise Unreadable(
            Mark(file, line), f"column {column}: {_advice(error, text, line, column)}"
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable(Mark(file, line), f"holds the character {error.character!r}; remove it") from error
    except RecursionError as error:
        raise Unreadable(Mark(file, 1), "is nested too deeply") from error


def _advice(error: yaml.MarkedYAMLError, text: str, line: int, column: int) -> str:
    if "single document" in str(error.context):
        return "a second document begins here; a pipeline is one document, remove the `---`"
    here = [*text.splitlines(), "", ""][line - 1][:column]
    if "\t" in here and not here.strip():
        return "a tab; YAML indents with spaces only"
    problem = str(error.problem or error.context)
    if problem.startswith("mapping values are not allowed"):
        alone = ":" not in here[:-1]  # then the value that it would be in began in a line before
        check = f"the indentation, and the colon of line {line - 1}" if alone else "the indentation"
        return f"a second `key: value` where a value is expected; check {check}, or quote the value"
    began = error.context_mark.line + 1 if error.context_mark and "flow" in str(error.context) else line
    where = "around here" if began == line else f"from line {began} on"
    return f"not YAML: {problem}; check the indentation, quotes and brackets {where}"


class _Reader:
    """Turns YAML nodes into values, and collects the place of every key and item."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.marks: dict[KeyPath, Mark] = {}
        self.problems: list[Problem] = []
        self._seen: set[int] = set()

    def mark(self, node: yaml.Node) -> Mark:
        return Mark(self.file, node.start_mark.line + 1)

    def wrong(self, node: yaml.Node, path: KeyPath, text: str) -> None:
        self.problems.append(Problem(self.mark(node), dotted(path), text))

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        if id(node) in self._seen:  # an alias could make a value infinite, or huge
            raise Unreadable(self.mark(node), f"{dotted(path)} is an alias; write its value out")
        self._seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        return self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._list(node, path)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> str | None:
        text: str = node.value
        if node.style is not None:
            return text
        implied = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))
        if node.tag == implied:
            return None if text in _NULLS else Plain(text)
        if node.tag != _PREFIX + "str":
            self.wrong(
                node, path, f"the tag {node.tag.removeprefix(_PREFIX)!r} has no meaning here; remove it"
            )
        return text

    def _list(self, node: yaml.Node, path: KeyPath) -> list[Any]:
        items = []
        for index, item in enumerate(node.value):
            self.marks[(*path, index)] = self.mark(item)
            items.append(self.value(item, (*path, index)))
        return items

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.wrong(key_node, path, "a key must be one word")
                continue
            key, inner = key_node.value, (*path, key_node.value)
            if key in values:
                line = self.marks[inner].line
                self.wrong(key_node, inner, f"this key is already in line {line}; keep one of the two")
                continue
            values[key] = self.value(value_node, inner)
            self.marks[inner] = self.mark(key_node)
        return values
