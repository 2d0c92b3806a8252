"""The real trainer's loop, a step at a time, and a plain loop in nanoGPT's manner over the same model."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the usual name in torch code

from benchlib.train_run import PreparedRun
from stoker.checkpoints.handover import Sealer
from stoker.plan.log import read_plan
from stoker.plan.windows import SegmentReader
from stoker.training.launch import Launch, read_launch
from stoker.training.load import load
from stoker.training.loop import Training
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model, initialize
from stoker.training.protocol import Protocol, Stop
from stoker.training.steps.schedule import Schedule


class Turns(Protocol):
    """Holds the loop, where it would tell the supervisor of a step, until its next turn."""

    def __init__(self) -> None:
        super().__init__("", "")
        self.turn, self.done = threading.Semaphore(0), threading.Semaphore(0)

    def tell(self, **words: object) -> None:
        self.done.release()
        self.turn.acquire()


class StokerLoop:
    """Training as `stoker.training.load` builds it; each turn is one pass of its loop, from word to word."""

    def __init__(self, run: PreparedRun) -> None:
        launch = read_launch(run.launch())
        self._turns, self._stop = Turns(), Stop()
        self._sealer = Sealer(launch.layout.checkpoints, launch.id)
        self.training = load(launch, self._turns, self._stop, self._sealer)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None

    def step(self) -> None:
        """Makes one step; raises what ended the loop instead."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._turns.turn.release()
        self._turns.done.acquire()
        if self._failure is not None:
            raise RuntimeError(f"the trainer's loop has ended: {self._failure!r}") from self._failure

    def end(self) -> None:
        """Lets the loop seal its last step and end."""
        self._stop.asked = True
        self._turns.turn.release(10)
        self._thread.join()
        self._sealer.end()

    def _run(self) -> None:
        try:
            ending = self.training.run()
            self._failure = EOFError(ending)
        except Exception as problem:  # noqa: BLE001 - told at the next step
            self._failure = problem
        self._turns.done.release()


class PlainLoop:
    """nanoGPT's loop: whole logits, AdamW by torch's fused kernel with decay on matrices only.

    From Karpathy's nanoGPT: train.py, and configure_optimizers of model.py; without its logging, estimates
    and checkpoints. The model, its first weights and the settings are those of a launch.
    """

    def __init__(self, launch: Launch, micro_batch: int) -> None:
        shape = Shape.parse(launch.model, vocab_size=launch.vocab_size, seq_len=launch.seq_len)
        self.model, self._micro_batch, self._clip = Model(shape), micro_batch, launch.optimizer["clip"]
        initialize(self.model, launch.seed)
        self._schedule = Schedule.parse(launch.schedule, peak=launch.optimizer["lr"], horizon=launch.steps)
        self.steps = 0
        parameters = list(self.model.parameters())
        decay = launch.optimizer["weight_decay"]
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=launch.optimizer["lr"], betas=tuple(launch.optimizer["betas"]), fused=True
        )

    def step(self, windows: Tensor) -> float:
        """Makes one step over windows (B, T + 1); returns the mean loss in nats."""
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self._schedule.rate(self.steps)
        parts = windows.split(self._micro_batch)
        losses = [self._backward(part, len(parts)) for part in parts]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).sum().item()

    def _backward(self, part: Tensor, parts: int) -> Tensor:
        logits = self.model(part[:, :-1])
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), part[:, 1:].reshape(-1)) / parts
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


def train_whole(run: PreparedRun) -> Training:
    """Runs the trainer's loop to the run's last step; returns the training."""
    launch, protocol = read_launch(run.launch()), Protocol("", "")
    sealer = Sealer(launch.layout.checkpoints, launch.id)
    try:
        training = load(launch, protocol, Stop(), sealer)
        training.run()
    finally:
        sealer.end()
    return training


def nanogpt_batch(run: PreparedRun) -> Tensor:
    """Returns a batch (B, T + 1) of windows from anywhere, as nanoGPT's get_batch reads it."""
    train = run.pipeline.train
    tokens = np.memmap(run.token_file, dtype=np.uint16, mode="r")
    starts = torch.randint(len(tokens) - train.seq_len, (train.global_batch,))
    size = train.seq_len + 1
    return torch.stack([torch.from_numpy(tokens[at : at + size].astype(np.int64)) for at in starts])


def planned_batch(run: PreparedRun, number: int) -> Tensor:
    """Returns batch `number`, from 0 on, of the plan's order."""
    train = run.pipeline.train
    (segment,) = read_plan(run.layout.plan).segments
    shards = run.pipeline.hot_layout.shards(run.pipeline.dataset.name)
    reader = SegmentReader(segment, shards, vocab_size=run.workload.vocab)
    first = number * train.global_batch
    return torch.from_numpy(reader.at_offsets(range(first, first + train.global_batch)))
