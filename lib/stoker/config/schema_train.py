"""The keys of `train:` in the pipeline file; sizes are in bytes, durations in seconds."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from stoker.config.reading import (
    AutoOrCount,
    Devices,
    FilePath,
    Flag,
    Name,
    Natural,
    Positive,
    PositiveNumber,
    PositiveSeconds,
    Precision,
    Section,
    Share,
    ShareBelowOne,
    Text,
    Words,
)
from stoker.config.schema_phases import Ema, Phase, PhaseSettings


class StartWhen(Section):
    """The proven data that a run needs to begin, unless the dataset is complete with less."""

    tokens: Natural = 100_000_000
    shard_sets: Positive = 1


class ModelShape(Section):
    """The shape of a decoder-only transformer."""

    layers: Positive
    width: Positive  # of the residual stream
    heads: Positive
    kv_heads: Positive
    ffn_width: Positive  # the hidden size of SwiGLU
    rope_theta: PositiveNumber = 10_000.0
    norm_eps: PositiveNumber = 1e-5
    tie_embeddings: Flag = True
    qk_norm: Flag = False  # RMSNorm of each query and key head, before RoPE
    document_mask: Flag = False  # no attention across an end-of-text token

    def parameters(self, vocab_size: int) -> int:
        """Returns the number of trained parameters, with the embedding."""
        head_width = self.width // self.heads
        attention = self.width * (self.heads + 2 * self.kv_heads) * head_width + self.width**2
        norms = 2 * self.width + 2 * head_width * self.qk_norm
        tables = vocab_size * self.width * (1 if self.tie_embeddings else 2)
        return self.layers * (attention + 3 * self.width * self.ffn_width + norms) + tables + self.width

    def body(self) -> dict[str, Any]:
        """Returns the model of launch.json and model.json, which leave out a later key that is off.

        A run that began before there was such a key keeps its digest and its checkpoints.
        """
        later = ("qk_norm", "document_mask")
        return {
            key: value for key, value in self.model_dump(mode="json").items() if value or key not in later
        }


class Optimizer(Section):
    # muon: for the matrices of the blocks, at the same rate and decay; embedding, head, norms stay with adamw
    name: Literal["adamw", "muon"] = "adamw"
    lr: PositiveNumber = 3.0e-4
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.95)  # of adamw
    weight_decay: Share = 0.1
    clip: PositiveNumber | None = 1.0  # the largest norm of the whole gradient; None: no clipping


class Schedule(Section):
    """The learning rate: linear warm-up to `lr`, then what `name` says.

    cosine: falls to `min_ratio` of `lr` at the run's last step. wsd (warm-up, stable, decay): stays, then
    falls as far over the last `decay` share of the steps. constant: stays.
    """

    name: Literal["cosine", "wsd", "constant"] = "cosine"
    warmup_steps: Natural = 2000
    min_ratio: Share = 0.1
    decay: Share | None = None  # of the horizon; 0.2 for wsd, None for every other

    def decay_begins(self, horizon: int) -> int | None:
        """Returns the last step before wsd decays; None for the other schedules."""
        return None if self.decay is None else horizon - max(1, round(self.decay * horizon))


class Evaluate(Section):
    """How often the held-out loss is measured, and over how many tokens; 0 tokens: never.

    After `patience` evaluations in a row without a gain beyond the standard error the run is finished.
    """

    every_steps: Positive | None = 1000
    tokens: Natural = 131_072
    patience: Positive | None = None  # None: it trains to its last step


class Checkpoint(Section):
    """When checkpoints are sealed (by time, by steps or both), and which are kept."""

    every: PositiveSeconds | None = 1800.0
    every_steps: Positive | None = None
    busy: Literal["wait", "skip"] = "wait"  # what a save does that is due while another is being sealed
    keep_last: Positive = 3
    keep_every: Positive | None = None
    milestones: tuple[Positive, ...] = ()  # steps whose checkpoints are always kept
    mirror: Flag = True


class Launcher(Section):
    processes: Positive = 1
    devices: Devices = "auto"


class External(Section):
    """A trainer of the user's own, beside `command`: see docs/trainers.md for what each level promises."""

    # client: its output and files are read, and what it tells by the client; full: it does all that the
    # built-in trainer does, with the plan, and seals its own checkpoints
    protocol: Literal["client", "full"] = "client"
    directory: FilePath | None = None  # where it runs; None: in the pipeline file's directory
    step: Text | None = "auto"  # of its output: known lines, a regular expression, or None: nothing is read
    checkpoints: Text | None = None  # a glob, from `directory`
    # Without a change, after which a save that the glob finds is over; None: 5 s, and 15 s where it is like
    # no save before it
    quiet: PositiveSeconds | None = None
    resume: Words = ()  # added to the command at a resume, with {path} and {step} filled in


# Keys of the built-in trainer; an external one decides by itself.
OF_BUILT_IN = (
    *("train.seed", "train.tokens", "train.model", "train.seq_len", "train.global_batch"),
    *("train.micro_batch", "train.precision", "train.deterministic", "train.compile", "train.recompute"),
    *("train.optimizer", "train.schedule", "train.ema", "train.phases", "train.evaluate", "train.launcher"),
    *("train.checkpoint.every", "train.checkpoint.every_steps", "train.checkpoint.busy"),
)


class Train(Section):
    """A training run; exactly one of `steps` and `tokens` is set, and ends the run."""

    run: Name = "main"
    seed: Natural = Field(default=1, le=2**63 - 1)
    steps: Positive | None = None
    tokens: Positive | None = None
    start_when: StartWhen = StartWhen()
    init_from: FilePath | None = None  # a checkpoint, or a model, whose parameters a new run begins with
    model: ModelShape
    seq_len: Positive = Field(default=2048, ge=2, le=2**20)
    global_batch: Positive = 128
    micro_batch: AutoOrCount = "auto"
    precision: Precision = "auto"
    deterministic: Flag = False
    compile: Literal["auto", "blocks", "none"] = "auto"  # auto: blocks on a GPU
    recompute: Literal["none", "blocks"] = "none"  # of activations, in the backward pass
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    ema: Ema | None = None
    phases: tuple[Phase, ...] = ()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    launcher: Launcher = Launcher()
    command: Words | None = None  # a trainer of the user's own
    external: External | None = None
    on_checkpoint: Text | None = None  # a command for each proven checkpoint, in words as a shell reads them
    on_promoted: Text | None = None  # the same for each promoted checkpoint

    @property
    def external_trainer(self) -> External | None:
        """How a trainer is supervised that reads no plan and seals nothing; None for one that does."""
        external = self.external or External()
        return external if self.command is not None and external.protocol == "client" else None

    @property
    def follows_plan(self) -> bool:
        """Whether the trainer reads Stoker's plan and seals its checkpoints."""
        return self.external_trainer is None

    def hook(self, key: str) -> tuple[str, ...]:
        """Returns a command's words; no shell runs them. Raises ValueError for a quote without its end."""
        return tuple(shlex.split(getattr(self, key) or ""))

    @property
    def horizon(self) -> int:
        """The run's last step: `steps`, or the number of whole batches in `tokens` (at least 1)."""
        if self.steps is not None:
            return self.steps
        return max(1, (self.tokens or 0) // (self.seq_len * self.global_batch))

    @property
    def settings(self) -> tuple[PhaseSettings, ...]:
        """The settings of each phase in its order; the first is the run's beginning."""
        keys = (self.seq_len, None, self.global_batch, self.micro_batch, self.recompute)
        found = [PhaseSettings("", 0, *keys)]
        for phase in self.phases:
            begins = self.schedule.decay_begins(self.horizon) or 0
            start = begins if phase.start == "decay" else int(phase.start)
            found.append(found[-1].followed_by(phase, start))
        return tuple(found)

    def at(self, step: int) -> PhaseSettings:
        """Returns the settings of the steps after this one."""
        return [one for one in self.settings if one.start <= step][-1]

    def spans(self, first: int, last: int) -> Iterator[tuple[PhaseSettings, int]]:
        """Yields the settings of the steps after `first` up to `last`, each with their number."""
        found = self.settings
        ends = [*(one.start for one in found[1:]), last]
        for one, end in zip(found, ends, strict=True):
            if (steps := min(end, last) - max(one.start, first)) > 0:
                yield one, steps

    @property
    def milestones(self) -> frozenset[int]:
        """The steps whose checkpoints are always kept: the configured ones, and those where phases begin."""
        return frozenset(self.checkpoint.milestones).union(one.start for one in self.settings[1:])

    def windows(self, first: int, last: int) -> int:
        """Returns the windows of the steps after `first` up to `last`."""
        return sum(steps * one.global_batch for one, steps in self.spans(first, last))

    def tokens_of(self, first: int, last: int) -> int:
        """Returns the tokens of the steps after `first` up to `last`."""
        return sum(steps * one.global_batch * one.seq_len for one, steps in self.spans(first, last))

    def tokens_per_parameter(self, vocab_size: int) -> float:
        """Returns the tokens of the whole run for each parameter."""
        return self.tokens_of(0, self.horizon) / self.model.parameters(vocab_size)
