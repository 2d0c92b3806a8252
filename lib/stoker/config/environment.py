"""Overrides keys of the pipeline file by environment variables, such as `STOKER_TRAIN__STEPS=10`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.config.document import Document, KeyPath, Mark, Problem, Unreadable, dotted, parse_value
from stoker.config.problems import FORMER, every_key, nearest, section_at

PREFIX = "STOKER_"
# Variables of Stoker itself (trainer protocol, workers, set-up, tests): never keys of the file.
OTHER_VARIABLES = frozenset({
    "STOKER_ALLOW_NETWORK_STATE", "STOKER_LAUNCH", "STOKER_MICRO_BATCH", "STOKER_NOTIFY_SOCKET",
    "STOKER_PIPELINE", "STOKER_PLAN", "STOKER_POOL", "STOKER_PYTHON", "STOKER_RESUME_FROM",
    "STOKER_RESUME_STEP", "STOKER_RUN_DIR", "STOKER_SHARDS", "STOKER_TIMELINES", "STOKER_TORCH_INDEX",
    "STOKER_TRAINER_OUTPUT", "STOKER_WORKER_PARENT",
})  # fmt: skip
OTHER_PREFIXES = ("STOKER_TEST_", "STOKER_CHAOS_", "STOKER_BENCH_", "STOKER_DEMO_")
_FREE_MAPPINGS: tuple[KeyPath, ...] = (("dataset", "filters", "at_least"),)


def variable_name(path: KeyPath) -> str:
    """Returns the environment variable that sets a key."""
    return PREFIX + "__".join(str(part).upper() for part in path)


def is_override(name: str) -> bool:
    """Returns whether an environment variable is meant to set a key of the pipeline file."""
    return name.startswith(PREFIX) and name not in OTHER_VARIABLES and not name.startswith(OTHER_PREFIXES)


def apply_overrides(document: Document, environ: Mapping[str, str]) -> None:
    """Writes every STOKER_ override into the document, and adds errors to its problems."""
    for name in sorted(environ):
        if not is_override(name):
            continue
        path = tuple(name.removeprefix(PREFIX).lower().split("__"))
        mark = Mark(f"environment {name}", 0)
        if not _settable(path):
            known = [variable_name(key) for key in every_key()]
            guess = nearest(name.lower(), [word.lower() for word in known])
            hint = f"did you mean {guess.upper()}?" if guess else f"write {PREFIX}SECTION__KEY, or unset it"
            if instead := FORMER.get(dotted(path)):
                hint = f"{instead}; unset it"
            document.problems.append(Problem(mark, "", f"sets no key of the pipeline file; {hint}"))
            continue
        try:
            parsed = parse_value(environ[name], mark.file)
            wrong = parsed.problems
            _put(document, path, parsed.values["value"], mark)
        except Unreadable as error:
            wrong = [error.problem]
        document.problems.extend(Problem(mark, dotted(path), problem.text) for problem in wrong)


def _settable(path: KeyPath) -> bool:
    section = section_at(path[:-1])
    return path[:-1] in _FREE_MAPPINGS if section is None else path[-1] in section.model_fields


def _put(document: Document, path: KeyPath, value: Any, mark: Mark) -> None:
    holder = document.values
    for depth, part in enumerate(path[:-1]):
        inner = holder.get(str(part))
        if inner is None:
            inner = holder[str(part)] = {}
            document.marks[path[: depth + 1]] = mark
        if not isinstance(inner, dict):
            outer = dotted(path[: depth + 1])
            text = f"cannot be set: {outer} is not a mapping in the file; write it as one there"
            document.problems.append(Problem(mark, dotted(path), text))
            return
        holder = inner
    holder[str(path[-1])] = value
    for inside in [known for known in document.marks if known[: len(path)] == path]:
        del document.marks[inside]
    document.marks[path] = mark
