"""Loads a pipeline file into a checked Pipeline: defaults < file < environment, all errors in one report."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stoker.config.checks import Fault, faults
from stoker.config.document import Document, KeyPath, Problem, Unreadable, read_document
from stoker.config.environment import apply_overrides
from stoker.config.places import on_network
from stoker.config.problems import explain, nearest
from stoker.config.schema import NO_DATASET, OF_DATA, Pipeline
from stoker.config.schema_train import OF_BUILT_IN
from stoker.store.errors import ConfigError

ALLOW_NETWORK = "STOKER_ALLOW_NETWORK_STATE"
DEFAULT_MODEL = "474m"
WSD_DECAY = 0.2  # of the steps: with it wsd ends at the loss of a cosine (Haegele et al. 2024, section 3)
_MODEL: KeyPath = ("train", "model")


def load_pipeline(path: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> Pipeline:
    """Reads and checks a pipeline file; raises ConfigError with a line for each problem."""
    file = Path(os.path.normpath(Path.cwd() / path))
    try:
        document = read_document(file)
        apply_overrides(document, environ)
        _settle_external(document)
        _resolve_model(document)
        _resolve_suites(document)
    except Unreadable as error:
        raise ConfigError(str(error)) from error
    _settle_defaults(document)
    pipeline, problems = _validate(document, file)
    if pipeline is not None:
        kind = None if environ.get(ALLOW_NETWORK) == "1" else on_network(pipeline.state)
        if kind is not None:
            text = f"lies on a network file system ({kind}); name a local disk, or set {ALLOW_NETWORK}=1"
            problems.append(document.problem(("state",), text))
    if problems or pipeline is None:
        first = {str(file): 0}
        ordered = sorted(set(problems), key=lambda p: (first.get(p.mark.file, 1), p.mark, p.key))
        raise ConfigError("\n".join(map(str, ordered)))
    return pipeline


def refuse(pipeline: Pipeline, found: Sequence[Fault]) -> None:
    """Raises ConfigError with the line of each fault, as load_pipeline does, if there is any."""
    if found:
        document = read_document(pipeline.file)
        raise ConfigError("\n".join(str(document.problem(fault.path, fault.text)) for fault in found))


def examples_dir() -> Path:
    """Returns the directory of the examples: in the installed package, or etc/ of a source tree."""
    packaged = Path(__file__).parent / "examples"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "etc"


def deploy_dir() -> Path:
    """Returns the directory of units and dashboards: in the installed package, or of a source tree."""
    packaged = Path(__file__).parents[1] / "deploy"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "deploy"


def docs_dir() -> Path:
    """Returns the directory of the manual: below deploy/ in the installed package, or of a source tree."""
    packaged = deploy_dir() / "docs"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "docs"


def _settle_external(document: Document) -> None:
    """Lets the data be left out where the trainer is external; names the keys that it does not hear of.

    Such a pipeline has NO_DATASET. Its hot is never made.
    """
    values, train = document.values, document.values.get("train")
    external = train.get("external") if isinstance(train, dict) else None
    is_full = isinstance(external, dict) and external.get("protocol") == "full"
    if not isinstance(train, dict) or train.get("command") is None or is_full:
        return
    _refuse(document, OF_BUILT_IN, "is a setting of the built-in trainer, and train.command names another")
    if "dataset" not in values:
        _refuse(document, OF_DATA, "is about a dataset, and none is named")
        values["dataset"] = NO_DATASET
        if isinstance(state := values.get("state", _state_of(values)), str):
            values["hot"] = f"{state}/hot"


def _refuse(document: Document, keys: Sequence[str], why: str) -> None:
    """Takes these dotted keys out of the document, each with its problem."""
    for key in keys:
        path = tuple(key.split("."))
        holder: Any = document.values
        for section in path[:-1]:
            holder = holder.get(section) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and path[-1] in holder:
            document.problems.append(document.problem(path, f"{why}; remove it"))
            del holder[path[-1]]


def _state_of(values: Mapping[str, Any]) -> str:
    return f"/var/lib/stoker/{values.get('name')}"


def _resolve_model(document: Document) -> None:
    """Replaces a model's name by the mapping of that model."""
    train = document.values.get("train")
    if not isinstance(train, dict):
        return
    name = train.setdefault("model", DEFAULT_MODEL)
    if not isinstance(name, str):
        return
    file = _shipped("model", name, "its mapping", document, _MODEL)
    # any known model, so that the other keys are still checked
    document.graft(_MODEL, read_document(file or examples_dir() / "models" / f"{DEFAULT_MODEL}.yaml"))


def _resolve_suites(document: Document) -> None:
    """Replaces a shipped suite's name by its file."""
    entries = document.values.get("evaluations")
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        name = entry.get("suite") if isinstance(entry, dict) else None
        if isinstance(name, str) and not name.endswith(".yaml"):
            file = _shipped("suite", name, "a path of FILE.yaml", document, ("evaluations", number, "suite"))
            entry["suite"] = str(file or f"{name}.yaml")


def _shipped(what: str, name: str, otherwise: str, document: Document, path: KeyPath) -> Path | None:
    """Returns the shipped file of a name; None, and a problem of the document, where there is none."""
    files = {file.stem: file for file in sorted((examples_dir() / f"{what}s").glob("*.yaml"))}
    if name not in files:
        guess = nearest(name, files)
        hint = f"did you mean '{guess}'?" if guess else f"write {otherwise}, or one of {', '.join(files)}"
        document.problems.append(document.problem(path, f"there is no {what} named {str(name)!r}; {hint}"))
    return files.get(name)


def _settle_defaults(document: Document) -> None:
    """Fills in the defaults that depend on another key."""
    values = document.values
    if isinstance(values.get("name"), str):
        values.setdefault("state", _state_of(values))
    shard = values.setdefault("shard", {})
    if isinstance(shard, dict) and values.get("warm") is not None:
        shard.setdefault("release", "after_sync")
    tokenizer = values.setdefault("tokenizer", {})
    if isinstance(tokenizer, dict) and "file" not in tokenizer:
        tokenizer.setdefault("train", {})
    train = values.get("train")
    schedule = train.get("schedule") if isinstance(train, dict) else None
    if isinstance(schedule, dict) and schedule.get("name") == "wsd":
        schedule.setdefault("decay", WSD_DECAY)
    model = train.get("model") if isinstance(train, dict) else None
    if isinstance(model, dict):
        if "ffn" in model and "ffn_width" not in model:
            model["ffn_width"] = model.pop("ffn")
            document.marks[(*_MODEL, "ffn_width")] = document.mark((*_MODEL, "ffn"))
        if "heads" in model:
            model.setdefault("kv_heads", model["heads"])


def _validate(document: Document, file: Path) -> tuple[Pipeline | None, list[Problem]]:
    """Returns the pipeline, built from its valid keys, and all problems, also those between keys."""
    problems = list(document.problems)
    try:
        pipeline, about = _build(document.values, file), set[KeyPath]()
    except ValidationError as error:
        found, about = explain(error, document)
        problems += found
        try:
            pipeline = _build(_without(document.values, error), file)
        except ValidationError:
            return None, problems
    if ("train", "command") in about:  # whose trainer it is, and so what it needs, is not known
        about |= {("train", "steps"), ("train", "external")}
    if any(path[0] == "evaluations" for path in about):  # which suites there are is not known
        about |= {("evaluations",), ("promote",)}
    for fault in faults(pipeline, file.stem):
        if not any(path == fault.path[: len(path)] for path in about):
            problems.append(document.problem(fault.path, fault.text))
    return pipeline, problems


def _build(values: dict[str, Any], file: Path) -> Pipeline:
    pipeline = Pipeline.model_validate(values, context={"directory": file.parent})
    pipeline._file = file
    return pipeline


def _without(values: dict[str, Any], error: ValidationError) -> dict[str, Any]:
    """Returns the valid values, which can still be checked against each other."""
    left = copy.deepcopy(values)
    for item in error.errors():
        holder = left
        for part in map(str, item["loc"]):
            if not isinstance(holder.get(part), dict):
                holder.pop(part, None)
                break
            holder = holder[part]
    return left
