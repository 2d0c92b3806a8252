"""Settings that a configuration may not change once the dataset is pinned; checked by loop and CLI."""

from __future__ import annotations

from typing import Any

from stoker.config.checks import Fault
from stoker.config.document import KeyPath
from stoker.config.schema import Pipeline
from stoker.corpus.readers.table import Tokens
from stoker.corpus.records.dataset import DatasetPin, TokenizerPin
from stoker.shards.format.identity import BuildParameters, Filters, build_id
from stoker.shards.format.steps import STEPS
from stoker.store.direct import hash_file
from stoker.store.errors import ConfigError
from stoker.store.files import canonical_json

_KEYS: dict[str, KeyPath] = {
    "text_column": ("dataset", "text_column"),
    "tokens": ("dataset", "tokens_column"),
    "filters": ("dataset", "filters"),
    "val_ratio": ("shard", "val_ratio"),
    "shard_tokens": ("shard", "shard_tokens"),
}


def asked_of_tokenizer(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the configuration's tokenizer settings as the pin keeps them; ConfigError without the file."""
    file, train = pipeline.tokenizer.file, pipeline.tokenizer.train
    if file is not None:
        try:
            return {"file": hash_file(file, past_cache=False).sha256}
        except FileNotFoundError:
            raise ConfigError(
                f"{pipeline.file}: tokenizer.file: {file} is not there; correct the path"
            ) from None
    assert train is not None  # the configuration holds exactly one of the two
    return {"train": {"vocab_size": train.vocab_size, "train_bytes": train.train_bytes}}


def parameters_asked(pipeline: Pipeline, tokenizer: TokenizerPin) -> BuildParameters:
    """Returns the build parameters that the configuration gives with this tokenizer."""
    return BuildParameters(
        tokenizer_sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        eot=tokenizer.eot,
        text_column=pipeline.dataset.column,
        filters=filters_asked(pipeline),
        val_ratio=float(pipeline.shard.val_ratio),
        shard_tokens=int(pipeline.shard.shard_tokens),
        tokens=pipeline.dataset.tokens_column is not None,
    )


def filters_asked(pipeline: Pipeline) -> Filters:
    values = pipeline.dataset.filters.model_dump()
    if pipeline.dataset.tokens_column is not None:  # the default of a step that reads text is not for tokens
        values = {name: value for name, value in values.items() if STEPS[name].columns is not None}
    return Filters.from_mapping(values)


def columns_asked(pipeline: Pipeline, pin: DatasetPin | None) -> dict[str, Any]:
    """Returns the fields of a task that say which columns a file must have, and what they hold."""
    tokens = Tokens() if pipeline.dataset.tokens_column is not None else None
    if tokens is not None and pin is not None and pin.version == pipeline.dataset.version:
        tokens = BuildParameters.from_mapping(pin.build).token_rules
    return {
        "text_column": pipeline.dataset.column,
        "columns": filters_asked(pipeline).columns(),
        "tokens": None if tokens is None else tokens._asdict(),
    }


def pin_faults(pipeline: Pipeline, pin: DatasetPin) -> list[Fault]:
    """Returns the settings that differ from the pinned build of this dataset version.

    Raises ConfigError where the given tokenizer's file does not exist.
    """
    name, version = pipeline.dataset.name, pipeline.dataset.version
    if version > pin.version:  # a new version may change everything
        return []
    if version < pin.version:
        text = (
            f"is {version}, but {name} is pinned at version {pin.version}: set it to {pin.version}, or "
            "higher to build again"
        )
        return [Fault(("dataset", "version"), text)]
    faults = []
    advice = (
        f"to build the dataset again, set dataset.version to {version + 1} and train.run (now "
        f"{pipeline.train.run}) to a new name, both at once, for a run stays with the dataset it began with; "
        "or undo the change"
    )
    asked = asked_of_tokenizer(pipeline)
    if asked != pin.asked and asked.get("file") != pin.tokenizer.sha256:
        text = (
            f"{name} version {version} is pinned to {_plain(pin.asked)}, the configuration asks for "
            f"{_plain(asked)}; {advice}"
        )
        faults.append(Fault(("tokenizer",), text))
    wanted = parameters_asked(pipeline, pin.tokenizer)
    if build_id(wanted) != pin.build_id:
        changed = {key: value for key, value in wanted.to_mapping().items() if value != pin.build.get(key)}
        listed = ", ".join(
            f"{key} {_plain(value)}, pinned {_plain(pin.build.get(key))}" for key, value in changed.items()
        )
        text = (
            f"{name} version {version} is pinned to build {pin.build_id}, the configuration yields build "
            f"{build_id(wanted)} ({listed}); {advice}"
        )
        faults.append(
            Fault(next((_KEYS[key] for key in changed if key in _KEYS), ("dataset", "version")), text)
        )
    return faults


def not_yet_pinned(pipeline: Pipeline, pin: DatasetPin) -> str:
    """Returns why no run may begin with this pin; empty where a run may begin."""
    name, version = pipeline.dataset.name, pipeline.dataset.version
    if pin.version < version:
        return f"{name} is pinned at version {pin.version}, and the stage-shard loop has yet to pin {version}"
    return "; ".join(fault.text for fault in pin_faults(pipeline, pin))


def _plain(value: Any) -> str:
    return canonical_json(value).decode()
