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
from stoker.config.problems import explain
from stoker.config.reading import FilePath, Natural, Number, Positive, Section, Text
from stoker.store.checksums import content_digest
from stoker.store.direct import hash_file
from stoker.store.errors import DataError
from stoker.store.files import canonical_json

CODE = ("cases.py", "harness.py")  # which decide over a score, too


class Decoding(Section):
    """How the answer to a prompt is drawn: temperature 0 takes the likeliest token."""

    temperature: Annotated[Number, Field(ge=0)] = 0.0
    max_tokens: Positive = 64


class Suite(Section):
    """Tasks of the harness: its own, or those of the folder `include`. Its name is that of its file."""

    seed: Natural = 1
    limit: Positive | None = None  # documents a task
    shots: Natural = 0
    tasks: Annotated[tuple[Text, ...], Field(min_length=1)]
    include: FilePath | None = None
    decoding: Decoding = Field(default_factory=Decoding)
    _document: Document = PrivateAttr()

    def insist_on_tasks(self, known: Sequence[str]) -> None:
        """Raises DataError with the line of a task that is none of the known ones."""
        for number, task in enumerate(self.tasks):
            if task not in known:
                hint = did_you_mean(task, known, "`lm_eval ls tasks` lists those of the harness")
                found = self._document.problem(("tasks", number), f"there is no task {task!r}; {hint}")
                raise DataError(str(found))


def read_suite(file: Path) -> Suite:
    """Returns the suite of a file; raises DataError with a line for each problem."""
    try:
        document = read_document(file)
        problems = document.problems
        suite = Suite.model_validate(document.values, context={"directory": file.parent})
        if suite.include is not None and not suite.include.is_dir():
            problems.append(document.problem(("include",), "is no folder; name that of the tasks"))
    except Unreadable as error:
        problems = [error.problem]
    except ValidationError as error:
        problems += explain(error, document, Suite)[0]
    if problems:
        raise DataError("\n".join(map(str, problems)))
    suite._document = document
    return suite


def digest_of(suite: Suite, tokenizer_sha256: str, documents: Sequence[str]) -> str:
    """Returns the sha256 of all that decides over a score, but the model: only equal ones are compared.

    `documents` are the harness's hashes of the documents, which may come from elsewhere than `include`.
    """
    body = {
        "suite": suite.model_dump(mode="json", exclude={"include"}),
        "files": None if suite.include is None else content_digest(suite.include),
        "documents": sorted(documents),
        "versions": [version(name) for name in ("lm_eval", "transformers")],
        "code": [hash_file(Path(__file__).with_name(name)).sha256 for name in CODE],
        "tokenizer": tokenizer_sha256,
    }
    return hashlib.sha256(canonical_json(body)).hexdigest()
