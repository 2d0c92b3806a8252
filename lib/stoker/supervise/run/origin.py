"""The checkpoint of another run whose parameters a run begins with (`train.init_from`).

It is chosen once, when the run begins, and known by its bytes from then on. Only a launch from step 0 reads
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.checkpoints.format import CheckpointBody
from stoker.checkpoints.proof import prove_checkpoint
from stoker.store.errors import ConfigError, StorageError

if TYPE_CHECKING:  # a trainer imports this module; the schema's library would cost it a tenth of its launch
    from stoker.config.schema import Pipeline
    from stoker.corpus.records.dataset import DatasetPin


@dataclass(frozen=True)
class Origin:
    """A checkpoint directory, its step, and the sha256 of its checkpoint.json."""

    path: str
    step: int
    sha256: str


def choose_origin(pipeline: Pipeline, pin: DatasetPin, proof: Mapping[str, Any]) -> Origin:
    """Returns the origin of a new run from the proof of the configured checkpoint and its model.json.

    Raises ConfigError, with both values, where the run's model or tokenizer is another.
    """
    path, body, model = str(pipeline.train.init_from), proof["body"], proof["model"]
    wanted = {**pipeline.train.model.body(), "vocab_size": pin.tokenizer.vocab_size}
    names = sorted((model.keys() | wanted.keys()) - {"v", "seq_len"})
    compared = {
        "tokenizer (sha256)": (body["files"]["tokenizer.json"]["sha256"], pin.tokenizer.sha256),
        **{f"model.{name}": (model.get(name), wanted.get(name)) for name in names},
    }
    for what, (theirs, ours) in compared.items():
        if theirs != ours:
            raise ConfigError(
                f"{pipeline.file}: train.init_from: this run cannot begin with {path}: its {what} is "
                f"{theirs}, this run's is {ours}; make them equal, or name another checkpoint"
            )
    return Origin(path, body["step"], proof["digest"])


def prove_origin(origin: Origin, *, deep: bool = True) -> CheckpointBody:
    """Returns the body of a run's origin, proven; with deep=False the large files by their sizes alone.

    Raises StorageError where it cannot be read now, ConfigError where it is not that checkpoint any more.
    """
    proof = prove_checkpoint(Path(origin.path), deep=deep)
    what = f"{origin.path}, whose parameters this run began with at step 0,"
    if proof.verdict == "unreadable":
        raise StorageError(f"{what} {proof.reason}; put it back, or begin another run (train.run)")
    if proof.body is None or proof.digest != origin.sha256:
        why = f"is not whole: {proof.reason}" if proof.body is None else "is another checkpoint now"
        raise ConfigError(
            f"{what} {why}; put back the one whose checkpoint.json has the sha256 {origin.sha256}, or begin "
            "another run (train.run)"
        )
    return proof.body
