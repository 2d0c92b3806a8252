"""Whether a dataset's pin is what the configuration asks for; plain sentences, for whoever has to refuse."""

from __future__ import annotations

from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.dataset import DatasetPin
from stoker.shards.identity import build_id, parameters_for
from stoker.store.errors import ConfigError
from stoker.store.files import canonical_json
from stoker.store.hashing import hash_file


def asked_tokenizer(pipeline: Pipeline) -> dict[str, Any]:
    """What the configuration wants of the tokenizer; ConfigError where its file is not there."""
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


def another_build(pipeline: Pipeline, pin: DatasetPin) -> str:
    """What of the configuration contradicts the pin, and what to do; empty where nothing does.

    A higher `dataset.version` than the pinned one contradicts nothing: it is built anew.
    """
    name, version = pipeline.dataset.name, pipeline.dataset.version
    if version > pin.version:
        return ""
    if version < pin.version:
        return (
            f"{pipeline.file}: dataset.version is {version}, but {name} is pinned at version {pin.version}: "
            f"set it to {pin.version}, or higher to build anew"
        )
    advice = (
        f"to build the dataset anew change two keys, dataset.version to {version + 1} and train.run (now "
        f"{pipeline.train.run}) to a new name, for a run stays with the dataset it began with; or undo the "
        "change"
    )
    asked = asked_tokenizer(pipeline)
    if asked != pin.asked and asked.get("file") != pin.tokenizer.sha256:
        return (
            f"{pipeline.file}: tokenizer: {name} version {version} is pinned to {_plain(pin.asked)}, the "
            f"configuration asks for {_plain(asked)}; {advice}"
        )
    tokenizer = pin.tokenizer
    wanted = parameters_for(
        pipeline,
        tokenizer_sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        eot=tokenizer.eot,
    )
    if build_id(wanted) == pin.build_id:
        return ""
    changed = ", ".join(
        f"{key} {_plain(value)}, pinned {_plain(pin.build.get(key))}"
        for key, value in wanted.to_mapping().items()
        if value != pin.build.get(key)
    )
    return (
        f"{pipeline.file}: {name} version {version} is pinned to build {pin.build_id}, the configuration "
        f"yields build {build_id(wanted)} ({changed}); {advice}"
    )


def not_yet_pinned(pipeline: Pipeline, pin: DatasetPin) -> str:
    """Why no run may begin with this pin; empty where one may."""
    name, version = pipeline.dataset.name, pipeline.dataset.version
    if pin.version < version:
        return f"{name} is pinned at version {pin.version}, and the stage-shard loop has yet to pin {version}"
    return another_build(pipeline, pin)


def _plain(value: Any) -> str:
    return canonical_json(value).decode()
