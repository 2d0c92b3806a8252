"""The checkpoint or the model whose parameters a run begins with (`train.init_from`).

A model is a directory in the layout of Hugging Face transformers. The origin is chosen once, when the run
begins, and known by its bytes from then on. Only a launch from step 0 reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.checkpoints.format import CheckpointBody
from stoker.checkpoints.proof import prove_checkpoint, prove_model
from stoker.store.errors import ConfigError, StorageError

if TYPE_CHECKING:  # a trainer imports this module; the schema's library would cost it a tenth of its launch
    from stoker.config.schema import Pipeline
    from stoker.corpus.records.dataset import DatasetPin


@dataclass(frozen=True)
class Origin:
    """A checkpoint directory, its step, and the sha256 of its checkpoint.json.

    Of a model's directory the step is None, and the sha256 that of its list of checksums.
    """

    path: str
    step: int | None
    sha256: str


def choose_origin(pipeline: Pipeline, pin: DatasetPin, proof: Mapping[str, Any]) -> Origin:
    """Returns the origin of a new run from the proof of the configured checkpoint and its model.json.

    Of a model's directory, the proof has the `differences` from the run. Raises ConfigError, with both
    values, where the run's model or tokenizer is another.
    """
    path = str(pipeline.train.init_from)
    if (differences := proof.get("differences")) is not None:
        if differences:
            raise ConfigError(f"{pipeline.file}: train.init_from: {cannot_begin(path, differences)}")
        return Origin(path, None, proof["digest"])
    body, model = proof["body"], proof["model"]
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


def cannot_begin(path: Path | str, differences: Sequence[str]) -> str:
    """Returns that a run cannot begin with a model's directory, and why."""
    why = "; ".join(differences)
    return f"this run cannot begin with {path}: {why}; make them equal, or name another model"


def prove_origin(origin: Origin, *, deep: bool = True) -> CheckpointBody | None:
    """Returns the body of a run's origin, proven; None where it is a model's directory.

    With deep=False the large files of a checkpoint are proven by their sizes alone. Raises StorageError where
    it cannot be read now, ConfigError where it is not that checkpoint or model any more.
    """
    path, kind, listed = Path(origin.path), "checkpoint", "checkpoint.json"
    if origin.step is None:
        proof, kind, listed = prove_model(path), "model", "list of checksums (SHA256SUMS)"
    else:
        proof = prove_checkpoint(path, deep=deep)
    what = f"{origin.path}, whose parameters this run began with at step 0,"
    if proof.verdict == "unreadable":
        raise StorageError(f"{what} {proof.reason}; put it back, or begin another run (train.run)")
    if proof.digest != origin.sha256:
        why = f"is not whole: {proof.reason}" if proof.digest is None else f"is another {kind} now"
        raise ConfigError(
            f"{what} {why}; put back the one whose {listed} has the sha256 {origin.sha256}, or begin "
            "another run (train.run)"
        )
    return proof.body
