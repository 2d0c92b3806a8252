"""A suite of tasks: a YAML file of etc/suites or of the user's own, and the digest of all that it asks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from pydantic import Field, PrivateAttr, ValidationError

from stoker.cli.options import did_you_mean
from stoker.config.document import Document, Unreadable, read_document
from stoker.config.load import examples_dir
from stoker.config.problems import explain
from stoker.config.reading import FilePath, Name, Natural, Number, Positive, Section, Text
from stoker.store.direct import hash_file
from stoker.store.errors import DataError, UsageError
from stoker.store.files import canonical_json

COMPILED = "__pycache__"  # of a task's own code: it differs by the machine


class Decoding(Section):
    """How the answer to a prompt is drawn: temperature 0 takes the likeliest token."""

    temperature: Annotated[Number, Field(ge=0)] = 0.0
    max_tokens: Positive = 64


class Suite(Section):
    """Tasks of the harness: its own, or those of the folder `include`."""

    name: Name
    seed: Natural = 1
    limit: Positive | None = None  # documents a task
    shots: Natural = 0
    tasks: Annotated[tuple[Text, ...], Field(min_length=1)]
    include: FilePath | None = None
    decoding: Decoding = Field(default_factory=Decoding)
    primary: Text | None = None  # the metric that is shown first
    _document: Document = PrivateAttr()

    def unknown_task(self, number: int, known: list[str]) -> DataError:
        """Returns the error about a task that nobody has, with its line."""
        hint = did_you_mean(self.tasks[number], known, "`lm_eval ls tasks` lists those of the harness")
        text = f"there is no task {self.tasks[number]!r}; {hint}"
        return DataError(str(self._document.problem(("tasks", number), text)))


def find_suite(name: str) -> Path:
    """Returns the file of a shipped suite, or the path that the name is; UsageError where there is none."""
    shipped = {file.stem: file for file in sorted((examples_dir() / "suites").glob("*.yaml"))}
    file = shipped.get(name, Path(name).absolute())
    if not file.is_file():
        hint = did_you_mean(name, shipped, f"name a YAML file, or one of {', '.join(shipped)}")
        raise UsageError(f"there is no suite {name!r}; {hint}")
    return file


def read_suite(file: Path) -> Suite:
    """Returns the suite of a file; raises DataError with a line for each problem."""
    try:
        document = read_document(file)
        problems = document.problems
        suite = Suite.model_validate(document.values, context={"directory": file.parent})
        suite._document = document
        if suite.name != file.stem:  # so no two suites of a folder have one name
            problems.append(document.problem(("name",), f"the file is {file.name}; write {file.stem}"))
    except Unreadable as error:
        problems = [error.problem]
    except ValidationError as error:
        problems += explain(error, document, Suite)[0]
    if problems:
        raise DataError("\n".join(map(str, problems)))
    return suite


def digest_of(suite: Suite, tokenizer_sha256: str, documents: Sequence[str]) -> str:
    """Returns the sha256 of all that decides over a score, but the model: only equal ones are compared.

    `documents` are the harness's hashes of the documents, which may come from elsewhere than `include`.
    """
    files = [] if suite.include is None else sorted(suite.include.rglob("*"))
    code = [Path(__file__).with_name(name) for name in ("cases.py", "harness.py")]
    body = {
        "suite": suite.model_dump(mode="json", exclude={"include", "primary"}),
        "files": [
            (str(file.relative_to(suite.include or file)), hash_file(file).sha256)
            for file in files
            if file.is_file() and COMPILED not in file.parts
        ],
        "documents": sorted(documents),
        "versions": [version(name) for name in ("lm_eval", "transformers")],
        "code": [hash_file(file).sha256 for file in code],
        "tokenizer": tokenizer_sha256,
    }
    return hashlib.sha256(canonical_json(body)).hexdigest()
