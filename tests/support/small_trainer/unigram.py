"""A training without torch, for tests of the supervisor: everything of the trainer but its arithmetic.

The model is the frequency of each token, trained by gradients with momentum. Plan, batches, metrics,
checkpoints, datagrams, lock, stop and exit codes are those of the built-in trainer, so a wrong window, a lost
step or a state that was not restored changes the losses and the bytes of its checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.checkpoints.handover import File, Sealer
from stoker.checkpoints.saver import Copier, Saver
from stoker.checkpoints.seal import Tensor, tensor_files
from stoker.plan.positions import START, Position
from stoker.plan.timelines import ancestry, read_timelines, skips
from stoker.store.direct import hash_file
from stoker.store.errors import ConfigError, DataError, NonFinite
from stoker.store.files import canonical_json
from stoker.store.record import utc_now
from stoker.supervise.run.early_stop import standstill
from stoker.supervise.run.metrics_log import MetricsLog
from stoker.supervise.run.numerics_record import differences
from stoker.supervise.run.origin import prove_origin
from stoker.training.data.batches import Batch, Batches
from stoker.training.launch import Launch
from stoker.training.protocol import Protocol, Stop

STEP_S = float(
    os.environ.get("STOKER_TEST_STEP_S", "0.01")
)  # a run takes long enough to be met in the middle
POLL_S = 0.1
MOMENTUM = np.float32(0.9)
PRINTS = int(os.environ.get("STOKER_TEST_PRINTS", "0"))  # characters after each step
EVALUATION_PARTS = int(os.environ.get("STOKER_TEST_EVALUATION_PARTS", "0"))  # each a tenth of a second
TALKS_AT = int(os.environ.get("STOKER_TEST_TALKS_AT", "-1"))  # a step, and trains no more
SPIKE = 3.0  # nats, that the loss of a step with such a window is higher
RATE = 1000  # of train.optimizer.lr, which is meant for a network


class Training:
    """One launch: its progress, its two vectors, and what it reads and writes."""

    def __init__(self, launch: Launch, protocol: Protocol, stop: Stop, sealer: Sealer) -> None:
        if most := int(os.environ.get("STOKER_TEST_ADDRESS_BYTES", "0")):  # besides what it has now
            most += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        self.launch, self.protocol, self.stop = launch, protocol, stop
        self.progress = self
        self.activations = bytearray()
        self.numerics = numerics(launch)
        self.step, self.tokens = 0, 0
        self.loss: float | None = None
        self.val_loss: float | None = None
        self.position = START
        self.vectors = {name: np.zeros(launch.vocab_size, "<f4") for name in ("model", "optimizer")}
        if launch.resume_from is not None:
            self._restore(launch.resume_from)
        elif launch.origin is not None and prove_origin(launch.origin) is not None:
            self._read(Path(launch.origin.path), "model")  # a directory of transformers has no such vector
        timelines = read_timelines(launch.timelines)
        self.skips = skips(timelines, launch.timeline)
        self.batches = Batches(
            launch.plan,
            launch.shards_root,
            position=self.position,
            size=launch.global_batch,
            vocab_size=launch.vocab_size,
            skips=self.skips,
        )
        self.heldout = self._open_heldout()
        history = ancestry(timelines, launch.timeline)
        self.metrics = MetricsLog(launch.layout.metrics, history=history, resume_step=self.step)
        self.saver = Saver(
            sealer,
            Copier(),
            lambda **words: protocol.say(**words, **self._words()),
            step=self.step,
            every=(launch.checkpoint_every_s, launch.checkpoint_every_steps),
            skips=launch.checkpoint_busy == "skip",
        )

    def run(self) -> str:
        """Train to the end of the launch; why it ended."""
        self.protocol.say("load", numerics=json.dumps(self.numerics), **self._words())
        self.protocol.say("train", ready=1, **self._words())
        self._evaluate_if_due()
        last = self.launch.until or self.launch.steps
        ending = "steps" if last == self.launch.steps else "until"
        while self.step < last:
            if standstill(self.metrics.evaluations).ends(self.launch.patience):
                ending = "early_stop"
                break
            batch = self._next_batch()
            if batch is None:
                ending = "stopped" if self.stop.asked else "data_exhausted"
                break
            self._make_step(batch)
            self._evaluate_if_due()
            self._save_if_due()
        if ending in ("steps", "data_exhausted"):
            self._evaluate()
        self._seal_this_step()
        return ending

    def _make_step(self, batch: Batch) -> None:
        self._fail_where_a_test_wants_it(batch)
        if os.environ.get("STOKER_TEST_HALVES_AFTER") == str(self.step):
            self.numerics["micro_batch"] //= 2
            self.protocol.say("train", numerics=json.dumps(self.numerics), **self._words())
        counts = self._counts(batch.groups)
        self.loss, gradient = self._loss(counts), self._likelihoods() - counts / counts.sum()
        self.loss += SPIKE if self._reads(batch, "STOKER_TEST_SPIKE") else 0.0
        self.vectors["optimizer"] = MOMENTUM * self.vectors["optimizer"] + gradient.astype("<f4")
        rate = float(self.launch.optimizer["lr"]) * RATE
        self.vectors["model"] = self.vectors["model"] - np.float32(rate) * self.vectors["optimizer"]
        self.step, self.position = self.step + 1, batch.position
        self.tokens += batch.tokens
        time.sleep(STEP_S)
        if self.step == TALKS_AT and not Path(os.environ["STOKER_TEST_TALKED"]).exists():
            self._talk_for_ever()
        if PRINTS:
            print("." * PRINTS, flush=True)
        told = {"lr": rate, "grad_norm": float(np.abs(gradient).sum()), "tokens_per_s": 1e4, "data_wait_s": 0}
        told |= {
            "mfu": 0.25,
            "save_stall_s": 0.5,
            "memory_bytes": 2**20,
            "alloc_retries": 1,
            "micro_batch": self.numerics["micro_batch"],
        }
        row = {"step": self.step, "loss": self.loss, "tokens": self.tokens}
        self.metrics.append({**row, "position": self.position.as_list(), **told, "time": utc_now()})
        self.protocol.tell(**self._words(), **told)

    def _fail_where_a_test_wants_it(self, batch: Batch) -> None:
        """A step with such a window is not finite; a window of a pass takes so many bytes."""
        if self._reads(batch, "STOKER_TEST_NAN"):
            self._seal_this_step()
            raise NonFinite("its loss is nan", step=self.step + 1)
        if once := os.environ.get(
            "STOKER_TEST_NAN_ONCE"
        ):  # a bit flipped in memory, which does not come back
            with contextlib.suppress(FileNotFoundError):
                (Path(once) / str(self.step + 1)).unlink()
                raise NonFinite("its loss is nan", step=self.step + 1)
        a_window = int(os.environ.get("STOKER_TEST_WINDOW_BYTES", "0"))
        if len(self.activations) != (size := a_window * self.numerics["micro_batch"]):
            self.activations = bytearray(size)  # which touches each page

    def _reads(self, batch: Batch, planted_in: str) -> bool:
        """Whether a batch has a window that this variable names."""
        planted = {int(window) for window in os.environ.get(planted_in, "").split()}
        for first, last in self.skips:
            planted -= set(range(first.offset, last.offset))
        return any(self.position.offset <= window < batch.position.offset for window in planted)

    def _talk_for_ever(self) -> None:
        """Say with a heartbeat that there is no data, once in all launches."""
        Path(os.environ["STOKER_TEST_TALKED"]).touch()
        while True:
            self.protocol.say("wait-data", **self._words())
            time.sleep(POLL_S)

    def _next_batch(self) -> Batch | None:
        while not self.stop.asked:
            batch = self.batches.next()
            if batch is not None:
                if self.protocol.phase != "train":
                    self.protocol.say("train", **self._words())
                return batch
            if self.batches.exhausted:
                return None
            self.protocol.say("wait-data", **self._words())
            self._save_if_due()
            time.sleep(POLL_S)
            self.batches.reread()
        return None

    def _evaluate_if_due(self) -> None:
        every = self.launch.evaluate_every
        if self.step == 0 or (every and self.step % every == 0):
            self._evaluate()

    def _evaluate(self) -> None:
        if self.heldout is None or self.metrics.evaluated(self.step):
            return
        self.protocol.say("eval", **self._words())
        for done in range(EVALUATION_PARTS):
            time.sleep(POLL_S)
            self.protocol.tell(done=done + 1, **self._words())
        self.val_loss = self._loss(self._counts((self.heldout,)))
        row = {"step": self.step, "val_loss": self.val_loss, "val_stderr": 0.0}
        self.metrics.append({**row, "time": utc_now()})
        self.protocol.say("train", **self._words())

    def _save_if_due(self) -> None:
        if self.step == self.launch.schedule.get("decay_begins"):
            self._seal_this_step()
        elif self.saver.is_due(self.step):
            self._save()

    def _seal_this_step(self) -> None:
        while not self.saver.has_sealed(self.step):
            self.protocol.say("checkpoint", **self._words())
            self.saver.wait()
            if self.saver.saved_step != self.step:
                self._save()
        self.protocol.say("train", **self._words())

    def _save(self) -> None:
        launch, phase, head = self.launch, self.protocol.phase, self.batches.plan.head
        self.protocol.say("checkpoint", **self._words())
        self.metrics.sync()
        body = {
            "v": 1,
            **{name: getattr(launch, name) for name in ("run", "run_id", "timeline", "config_digest")},
            **{name: getattr(self, name) for name in ("step", "tokens", "loss", "val_loss")},
            "position": self.position.as_list(),
            "plan_head": head,
            "world_size": 1,
            "micro_batch": self.numerics["micro_batch"],
            "run_record": launch.run_record,
        }
        planned = launch.plan.read_bytes().splitlines(keepends=True) if launch.plan.exists() else []
        model = {"v": 1, **launch.model, "vocab_size": launch.vocab_size}
        timelines = launch.timelines.read_bytes() if launch.timelines.exists() else b""
        files: list[File] = [
            *self._tensors("model"),
            *self._tensors("optimizer"),
            ("trainer.json", [canonical_json({"v": 1, "numerics": self.numerics})]),
            ("model.json", [canonical_json(model)]),
            ("tokenizer.json", [launch.tokenizer_file.read_bytes()]),
            ("plan.jsonl", planned[: len(self.batches.plan.hashes)]),
            ("timelines.jsonl", [timelines]),
        ]
        self.saver.save(files, body)
        self.protocol.say(phase, **self._words())

    def _tensors(self, stem: str) -> list[File]:
        vector = self.vectors[stem]
        return list(tensor_files(stem, [Tensor("unigram", "F32", vector.shape, vector.data)]))

    def _restore(self, checkpoint: Path) -> None:
        if checkpoint.name in os.environ.get("STOKER_TEST_UNLOADABLE", "").split():
            raise RuntimeError(f"{checkpoint.name} cannot be loaded")
        body = json.loads((checkpoint / "checkpoint.json").read_bytes())
        self.step, self.tokens = body["step"], body["tokens"]
        self.loss, self.val_loss = body["loss"], body["val_loss"]
        self.position = Position.parse(body["position"])
        for stem in self.vectors:
            self._read(checkpoint, stem)

    def _read(self, checkpoint: Path, stem: str) -> None:
        # A length in 8 bytes, so many of JSON, the values.
        raw = (checkpoint / f"{stem}-00001.safetensors").read_bytes()
        self.vectors[stem] = np.frombuffer(raw[8 + int.from_bytes(raw[:8], "little") :], "<f4")

    def _open_heldout(self) -> npt.NDArray[Any] | None:
        held = self.launch.heldout
        if held is None:
            return None
        if hash_file(held.file).sha256 != held.sha256:
            raise DataError(f"{held.file} is not what the run's record says: held-out data changed")
        dtype = {"uint16": "<u2", "uint32": "<u4"}[self.launch.dtype]
        return np.fromfile(held.file, dtype).reshape(held.windows, -1)

    def _counts(self, groups: tuple[npt.NDArray[Any], ...]) -> npt.NDArray[Any]:
        """How often each token is a target."""
        size = self.launch.vocab_size
        return sum(np.bincount(group[:, 1:].reshape(-1), minlength=size) for group in groups)

    def _likelihoods(self) -> npt.NDArray[Any]:
        likely = np.exp(self.vectors["model"].astype(np.float64))
        return likely / likely.sum()

    def _loss(self, counts: npt.NDArray[Any]) -> float:
        loss = float(-(counts * np.log(self._likelihoods())).sum() / counts.sum())
        assert math.isfinite(loss)
        return loss

    def _words(self) -> dict[str, object]:
        entry, offset = self.position.as_list()
        numbers = {name: getattr(self, name) for name in ("step", "tokens", "loss", "val_loss")}
        return {**numbers, "position": f"{entry},{offset}"}


def numerics(launch: Launch) -> dict[str, Any]:
    """The run's own kernel on this machine, whose card a test may change."""
    kept = {"micro_batch": launch.global_batch, "micro_batch_asked": None, **(launch.numerics or {})}
    if launch.micro_batch not in (None, kept.get("micro_batch_asked")) and not launch.is_replay:
        kept |= {"micro_batch": launch.micro_batch, "micro_batch_asked": launch.micro_batch}
    card = os.environ.get("STOKER_TEST_CARD")
    found = {**kept, "device": "cpu", "card": card, "cuda": None, "cpu": "DEFAULT", "torch": "none"}
    if launch.is_replay and (changes := differences(kept, found)):
        raise ConfigError(f"this machine cannot give the bits of the recorded run: {changes}")
    return found


def load(launch: Launch, protocol: Protocol, stop: Stop, sealer: Sealer) -> Training:
    """What the built-in trainer calls in place of the one of that name that needs torch."""
    return Training(launch, protocol, stop, sealer)
