"""Trains over batches in the plan's order, with evaluations and checkpoints between the steps.

A checkpoint at step k holds the state after k optimizer steps, with the position of the next window. It
contains everything a step depends on (parameters, optimizer state, position, the schedule's step number), so
a resumed run is the same run.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from stoker.checkpoints.handover import File, Sealer
from stoker.checkpoints.saver import Saver
from stoker.store.errors import ConfigError, NonFinite
from stoker.store.record import utc_now
from stoker.supervise.run.early_stop import newest_evaluation, standstill
from stoker.supervise.run.metrics_log import MetricsLog
from stoker.training.compile import compile_blocks
from stoker.training.compile_cache import CompileCache
from stoker.training.copying import TensorCopier
from stoker.training.data.batches import Batches
from stoker.training.data.prefetch import Prefetcher, Prepared
from stoker.training.ema import Average
from stoker.training.evaluate import Evaluation, evaluate, of_later
from stoker.training.launch import Launch
from stoker.training.model.transformer import Model
from stoker.training.numerics import Numerics
from stoker.training.protocol import Protocol, Stop
from stoker.training.saving import contents
from stoker.training.state import Progress
from stoker.training.steps.device import Compute
from stoker.training.steps.figures import Figures
from stoker.training.steps.memory import Pressure, free_caches, while_it_fits, windows_a_pass
from stoker.training.steps.optimizer import AdamW
from stoker.training.steps.schedule import Schedule
from stoker.training.steps.step import Begun, Stepper, StepResult

PLAN_POLL_S = 0.2
PLAN_WORD_S = 1.0


@dataclass(frozen=True)
class Underway:
    """A step begun, at whose result nobody has looked."""

    step: int
    rate: float
    batch: Prepared
    started: float  # monotonic seconds, before its batch was asked for
    waited_s: float  # for that batch
    begun: Begun


@dataclass
class Training:
    """The training of one launch."""

    launch: Launch
    numerics: Numerics
    model: Model
    optimizer: AdamW
    compute: Compute
    progress: Progress
    batches: Batches
    heldout: npt.NDArray[Any] | None
    heldouts: Mapping[str, npt.NDArray[Any]]  # later ones, of longer windows, by name
    metrics: MetricsLog
    protocol: Protocol
    stop: Stop
    sealer: Sealer
    average: Average | None = None
    cache: CompileCache | None = None

    def __post_init__(self) -> None:
        launch = self.launch
        if newest := newest_evaluation(self.metrics.evaluations):  # perhaps made after its step was sealed
            self.progress = replace(self.progress, val_loss=newest[1])
        self.schedule = Schedule.parse(launch.schedule, peak=launch.optimizer["lr"], horizon=launch.steps)
        self.prefetcher = Prefetcher(self.batches, self.compute.device)
        self.pressure = Pressure(self.compute.device)
        self.copier = TensorCopier(self.compute.device)
        self.figures = Figures(self.model, self.compute.device, self.numerics.card)
        self.saver = Saver(
            self.sealer,
            self.copier,
            self._say,
            step=self.progress.step,
            every=(launch.checkpoint_every_s, launch.checkpoint_every_steps),
            skips=launch.checkpoint_busy == "skip",
        )
        self.stepper = Stepper(
            self.model,
            self.optimizer,
            self.compute,
            clip=launch.optimizer["clip"] or 0.0,
            before_update=self.copier.before_update,
        )
        # A GPU has the next step to make while the host looks at a result; a CPU gains nothing by it.
        self.looks_late = self.compute.device.type == "cuda"
        self._underway: Underway | None = None
        self._finished_at = 0.0  # monotonic seconds
        self._first = self.progress.step + 1

    def compile(self) -> None:
        """Compiles the blocks, where the run's numerics say so, for the sizes that training will meet."""
        if self.numerics.compile == "none":
            return
        self._say("compile")
        held = [one.shape for one in (self.heldout, *self.heldouts.values()) if one is not None]
        self.cache = compile_blocks(self.model, self.launch, self.numerics, self.compute, heldouts=held)
        if self.average is not None:
            for block in self.average.model.blocks:  # they share the code, too
                block.compile(dynamic=False)

    def run(self) -> str:
        """Trains, seals a checkpoint at the end, and returns why training ended.

        "steps": at the run's last step; "until": at the launch's last step; "data_exhausted": the plan has no
        further batch; "early_stop": the held-out loss improves no more; "stopped": the supervisor asked for a
        stop.
        """
        self.change_numerics()
        self._say("train", ready=1)
        self._evaluate_if_due()
        ending = self._train()
        self._finish_step()
        if ending in ("steps", "data_exhausted") and not self._evaluate():
            ending = "stopped"
        self.prefetcher.close()
        self._seal_this_step()
        if self.cache is not None:
            self.cache.seal()  # sizes that came up later are in it, too
            self.cache.close()
        return ending

    def _train(self) -> str:
        """Makes steps, and what follows them, to one of the ends of `run`; the last step may be under way."""
        last = min(self.launch.until or self.launch.steps, self.launch.steps)
        while self._last_begun < last:
            if self._is_at_a_standstill():
                return "early_stop"
            started = time.monotonic()
            batch = self._next_batch()
            if batch is None:
                return "stopped" if self.stop.asked else "data_exhausted"
            self._begin_step(batch, started, time.monotonic() - started)
            if self._underway is not None:  # its result is looked at when the next one is under way
                continue
            if self.progress.step == self._first:  # it has shown what memory training takes
                # For its memory is taken once: with the average, which may begin later.
                self.saver.prepare(*self._contents(averaged_at=self.launch.steps))
            self._evaluate_if_due()
            if self.progress.step < self.launch.steps:  # the last step is sealed with its evaluation
                self._checkpoint_if_due()
        return "steps" if last == self.launch.steps else "until"

    def _next_batch(self) -> Prepared | None:
        """Waits for the next batch and returns it; returns None at a stop or at the plan's end."""
        word_at = -math.inf
        while not self.stop.asked:
            batch = self.prefetcher.next()
            if batch is not None:
                if self.protocol.phase != "train":
                    self._say("train")
                return batch
            self._finish_step()
            if self.batches.exhausted:
                return None
            if time.monotonic() - word_at >= PLAN_WORD_S:
                self._say("wait-data")
                word_at = time.monotonic()
            self._checkpoint_if_due()
            time.sleep(PLAN_POLL_S)
        return None

    def _begin_step(self, batch: Prepared, started: float, waited_s: float) -> None:
        """Begins the next step, then finishes the one before; also this one, if its state is needed now."""
        if self.pressure.is_too_high() and self.numerics.micro_batch > 1:
            self._halved(self.numerics.micro_batch // 2)
            free_caches()
        step = self._last_begun + 1
        rate = self.schedule.rate(step)
        begun = while_it_fits(
            lambda micro_batch: self.stepper.begin(self._micro_batches(batch, micro_batch), rate),
            self.numerics.micro_batch,
            self._halved,
        )
        self._finish_step()
        self._underway = Underway(step, rate, batch, started, waited_s, begun)
        if not self.looks_late or self._is_followed(step):
            self._finish_step()

    @property
    def _last_begun(self) -> int:
        return self.progress.step if self._underway is None else self._underway.step

    def _micro_batches(self, batch: Prepared, micro_batch: int) -> list[Tensor]:
        """Returns a batch as micro-batches of windows (b, seq_len + 1)."""
        parts: list[Tensor] = []
        for group in batch.groups:
            windows = group.to(self.compute.device, non_blocking=True)
            length = windows.shape[1] - 1
            parts += torch.split(windows, windows_a_pass(micro_batch, self.launch.seq_len, length))
        return parts

    def _halved(self, micro_batch: int) -> None:
        """Drops the gradients of what did not fit; further steps are made with this micro-batch."""
        self.model.zero_grad()
        self._finish_step()  # the step before was made with the other
        print(f"trainer: memory is short, the micro-batch is {micro_batch} from now on", file=sys.stderr)
        self.change_numerics(micro_batch=micro_batch)

    def change_numerics(self, **changes: Any) -> None:
        """Makes all further steps with these fields of `numerics` changed, and tells the supervisor.

        It records that bits end after the last step made. What changes before `run` was never used: set
        `numerics` then, and `run` tells it. Raises ConfigError in a replay, which goes on with no others.
        """
        if self.launch.is_replay and changes:
            raise ConfigError(f"this machine needs {changes}, the recorded run did not: replay it elsewhere")
        self.numerics = replace(self.numerics, **changes)
        self._say(numerics=self.numerics.word(), micro_batch=self.numerics.micro_batch)

    def _is_followed(self, step: int) -> bool:
        """Whether something comes between a step and the next, and needs the state that it leaves."""
        is_told_apart = step in (self._first, self.schedule.decay_begins)
        is_averaged = self.average is not None and self.average.is_changed_by(step)
        return is_told_apart or is_averaged or self._evaluates_at(step) or self.saver.is_due(step)

    def _finish_step(self) -> None:
        """Waits for the result of the step under way, if there is one: only then is the step made.

        Raises NonFinite where it was not applied, after saving the state before it.
        """
        if self._underway is None:
            return
        made, self._underway = self._underway, None
        result = made.begun.result()
        if not result.is_finite:
            self._seal_this_step()
            raise NonFinite(
                f"step {made.step} was not applied: its loss is {result.loss}, its gradient norm "
                f"{result.grad_norm}; its windows begin at {self.progress.position.as_list()}. The state "
                "before it is kept. If it happens there again, roll back further, lower train.optimizer.lr, "
                "or check that data",
                **self.progress.words()
                | {"step": made.step, "loss": result.loss, "grad_norm": result.grad_norm},
            )
        if self.average is not None:
            self.average.update(made.step, self.model)
        self._record_step(made, result)

    def _record_step(self, made: Underway, result: StepResult) -> None:
        """Moves on to a step made, writes its row and tells it."""
        now = time.monotonic()
        elapsed_s = now - max(made.started, self._finished_at)  # it may have begun while the last was made
        self._finished_at = now
        self.progress = replace(
            self.progress,
            step=made.step,
            tokens=self.progress.tokens + made.batch.tokens,
            position=made.batch.position,
            loss=result.loss,
        )
        figures = self.figures.of_step(
            made.batch.groups,
            seconds=elapsed_s,
            waited_s=made.waited_s,
            micro_batch=self.numerics.micro_batch,
        )
        fields = {"lr": made.rate, "grad_norm": result.grad_norm, **figures}
        self.metrics.append(
            {
                "step": made.step,
                "loss": result.loss,
                "tokens": self.progress.tokens,
                "position": made.batch.position.as_list(),
                **fields,
                "time": utc_now(),
            }
        )
        self.protocol.tell(**self.progress.words(), **fields, gpu_reserved_bytes=self.compute.reserved_bytes)

    def _evaluate_if_due(self) -> None:
        """Evaluates at step 0 and every `evaluate_every` steps; a resumed run repeats one cut short."""
        if self._evaluates_at(self.progress.step):
            self._evaluate()

    def _evaluates_at(self, step: int) -> bool:
        every = self.launch.evaluate_every
        return step == 0 or (every is not None and step % every == 0)

    def _evaluate(self) -> bool:
        """Evaluates this step once; returns False at a stop. Raises NonFinite for an infinite or nan loss."""
        step = self.progress.step
        if self.heldout is None or self.metrics.evaluated(step):
            return True
        self._say("eval")
        passes = [(self.model, windows) for windows in (self.heldout, *self.heldouts.values())]
        if self.average is not None and self.average.has_begun(step):
            passes.append((self.average.model, self.heldout))
        made, done = list[Evaluation | None](), 0
        for model, windows in passes:
            made.append(self._evaluated(model, windows, done))
            done += len(windows)
        whole = [one for one in made if one is not None]
        if is_whole := len(whole) == len(made):  # one row has all, so that a resumed run repeats all
            found, *others = whole
            row = {"step": step, "val_loss": found.loss, "val_stderr": found.stderr}
            if len(others) > len(self.heldouts):
                row["ema_val_loss"] = others.pop().loss
            self.metrics.append({**row, **of_later(self.heldouts, others), "time": utc_now()})
            if not math.isfinite(found.loss):
                raise NonFinite(
                    f"the held-out loss at step {step} is {found.loss}: the model is useless and "
                    "is not saved. Roll back to a checkpoint from before it, or lower train.optimizer.lr",
                    **self.progress.words(),
                )
            self.progress = replace(self.progress, val_loss=found.loss)
        self._say("train")
        return is_whole

    def _evaluated(self, model: Model, windows: npt.NDArray[Any], done: int) -> Evaluation | None:
        """Evaluates a model over windows; `done` others were before them. Returns None at a stop."""
        length = windows.shape[1] - 1
        return evaluate(
            model,
            windows,
            compute=self.compute,
            micro_batch=windows_a_pass(self.numerics.micro_batch, self.launch.seq_len, length),
            go_on=lambda count: self._still_evaluating(done + count),
        )

    def _still_evaluating(self, windows: int) -> bool:
        self.protocol.tell(done=windows, **self.progress.words())
        self.saver.poll()
        return not self.stop.asked

    def _is_at_a_standstill(self) -> bool:
        """Asked at evaluated steps alone: it looks at all evaluations of the run."""
        patience = self.launch.patience
        if not patience or not self.metrics.evaluated(self.progress.step):
            return False
        return standstill(self.metrics.evaluations).ends(patience)

    def _checkpoint_if_due(self) -> None:
        if self.progress.step == self.schedule.decay_begins:  # a longer horizon may start at this very step
            self._seal_this_step()
        elif self.saver.is_due(self.progress.step):
            self._checkpoint()

    def _checkpoint(self) -> None:
        with self._saving(), self.figures.saving():
            self.metrics.sync()  # before the seal: the rows of a sealed step must be durable
            self.saver.save(*self._contents())

    def _seal_this_step(self) -> None:
        """Waits for the save in flight, then for that of this step; tries a failed one once more."""
        if self.saver.has_sealed(self.progress.step):
            return
        with self._saving():
            while not self.saver.has_sealed(self.progress.step):
                self.saver.wait()
                if self.saver.saved_step != self.progress.step:
                    self._checkpoint()

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Tells the phase of a save, then again the one before."""
        before = self.protocol.phase
        self._say("checkpoint")
        yield
        self._say(before)

    def _contents(self, averaged_at: int | None = None) -> tuple[list[File], dict[str, Any]]:
        """Returns a checkpoint's files and body; its average is as at another step, if one is named."""
        step = self.progress.step if averaged_at is None else averaged_at
        return contents(
            self.launch,
            self.progress,
            self.model,
            self.optimizer,
            average={} if self.average is None else self.average.tensors(step),
            numerics=self.numerics,
            plan_head=self.batches.plan.head,
        )

    def _say(self, phase: str | None = None, /, **words: object) -> None:
        self.protocol.say(phase, **words, **self.progress.words())
