"""Turns pydantic's errors into problems with the line, the dotted key and the nearest known key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from stoker.config.document import Document, KeyPath, Problem, dotted
from stoker.config.schema import Pipeline

_AVERAGE = "a moving average of the weights is train.ema: {decay: 0.999}; write that"
_EXTENSION = "a longer context is a phase of train.phases, with seq_len and rope; write that"
NOT_HERE = {
    **dict.fromkeys(("ema", "ema_decay"), _AVERAGE),
    **dict.fromkeys(("rope_scaling", "context_extension"), _EXTENSION),
}  # keys of other trainers
# Keys of the version before, and what holds in their place. To go with the next version.
FORMER = {
    "download.min_rate": "a server that sends less than 20 KiB a second for a minute is asked again",
    "shard.memory.soft": "a builder above 320 MiB is replaced at a commit; shard.memory.hard is its limit",
    "evict.min_active_tokens": "evict.keep_hot_sets is what always stays on hot",
    "train.checkpoint.sealer_cores": "the trainer leaves one of 16 or more cores to the sealer",
    "train.on_checkpoint_limit": "the command has one hour; `timeout 10m COMMAND` gives it less",
    "quarantine.keep_files": "100 entries of a kind are kept; quarantine.keep_bytes limits their size",
}


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word that is most similar to `word`, None if no word is similar."""
    import difflib  # noqa: PLC0415 - 200 KB that a daemon needs only in an error

    found = difflib.get_close_matches(word.lower(), sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None


def section_at(path: KeyPath, root: type[BaseModel] = Pipeline) -> type[BaseModel] | None:
    """Returns the schema of the mapping at path; None where no mapping is expected there."""
    section: type[BaseModel] | None = root
    for part in (each for each in path if isinstance(each, str)):  # not the number of a section in a list
        if section is None or part not in section.model_fields:
            return None
        annotation: Any = section.model_fields[part].annotation
        candidates = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        section = next((kind for kind in candidates if issubclass(kind, BaseModel)), None)
    return section


def every_key(section: type[BaseModel] = Pipeline, at: KeyPath = ()) -> list[KeyPath]:
    """Returns the paths of all keys that a file may have."""
    paths: list[KeyPath] = []
    for name in section.model_fields:
        paths.append((*at, name))
        inner = section_at((*at, name))
        if inner is not None:
            paths.extend(every_key(inner, (*at, name)))
    return paths


def unknown_key(path: KeyPath, root: type[BaseModel] = Pipeline) -> tuple[str, KeyPath | None]:
    """Returns the error text for an unknown key, and the path that was probably meant."""
    section = section_at(path[:-1], root)
    known = [field.alias or name for name, field in section.model_fields.items()] if section else []
    word = str(path[-1])
    if instead := FORMER.get(dotted(path)):
        return f"is no key any more: {instead}; remove it", None
    if word in NOT_HERE:
        return NOT_HERE[word], None
    guess = nearest(word, known)
    if guess is not None:
        return f"unknown key; did you mean '{guess}'?", (*path[:-1], guess)
    elsewhere = [place for place in every_key(root) if place[-1] == word]
    if len(elsewhere) == 1:
        return f"unknown key here; it belongs at '{dotted(elsewhere[0])}'", elsewhere[0]
    return f"unknown key; known here: {', '.join(known)}", None


def explain(
    error: ValidationError, document: Document, root: type[BaseModel] = Pipeline
) -> tuple[list[Problem], set[KeyPath]]:
    """Returns the problems that pydantic found, and their keys, with those probably meant."""
    texts: dict[KeyPath, str] = {}
    missing: list[KeyPath] = []
    about: set[KeyPath] = {tuple(problem.key.split(".")) for problem in document.problems}
    for item in error.errors(include_url=False):
        # Without pydantic's mark that the key of a mapping, not its value, is wrong.
        path = tuple(part for part in item["loc"] if part != "[key]")
        if item["type"] == "missing":
            missing.append(path)
        elif item["type"] == "extra_forbidden":
            texts[path], meant = unknown_key(path, root)
            about |= {meant} if meant else set()
        else:
            texts[path] = _sentence(item["type"], item.get("ctx", {}), item["input"])
    about |= set(texts)
    texts |= {path: "is required; add it" for path in missing if path not in about}
    return [document.problem(path, text) for path, text in texts.items()], about | set(missing)


# By pydantic's kind of error; `_sentence` appends the value that was written.
_SENTENCES = {
    **dict.fromkeys(
        ("model_type", "model_attributes_type", "dict_type"), "must be a mapping of `key: value`"
    ),
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list like [a, b]"),
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be {le} or less",
    "too_long": "has too many items; {max_length} at most",
    "too_short": "has too few items; {min_length} at least",
}


def _sentence(kind: str, context: dict[str, Any], value: object) -> str:
    if kind == "value_error":
        return str(context["error"])
    kinds: dict[type, str] = {type(None): "nothing", dict: "a mapping", list: "a list", tuple: "a list"}
    shown = kinds.get(type(value)) or repr(str(value))
    if kind == "literal_error":
        words = [word.strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(", ")]
        if value is None:
            return f"has no value; write one of {', '.join(words)}"
        guess = nearest(str(value), words)
        return f"{shown} is not one of {', '.join(words)}" + (f"; did you mean '{guess}'?" if guess else "")
    if kind in _SENTENCES:
        return _SENTENCES[kind].format_map(context) + f", not {shown}"
    return f"is not understood ({kind})"
