"""What a checkpoint of the training state holds, and how its tensors are copied while training waits."""

from __future__ import annotations

import hashlib
import platform
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.checkpoints.handover import File, Layout
from stoker.checkpoints.saver import Copier
from stoker.checkpoints.seal import tensor_files
from stoker.store.errors import DataError
from stoker.store.files import canonical_json
from stoker.store.log import GENESIS
from stoker.training.launch import Launch
from stoker.training.model.transformer import Model
from stoker.training.numerics import Numerics
from stoker.training.state import Progress, model_tensors, named, random_state
from stoker.training.steps.optimizer import AdamW


def contents(
    launch: Launch,
    progress: Progress,
    model: Model,
    optimizer: AdamW,
    *,
    numerics: Numerics,
    plan_head: str,
) -> tuple[list[File], dict[str, Any]]:
    """Returns the files and the body of a checkpoint of `progress`, with the tensors that training changes.

    The checkpoint holds the plan as far as this trainer has read it.
    """
    position = progress.position.as_list()
    trainer = {
        "v": 1,
        "rng": random_state(),
        "data": {"position": position, "tokens": progress.tokens, "plan_head": plan_head},
        "numerics": numerics.body(),
        "compute": {"threads": torch.get_num_threads(), "deterministic": launch.deterministic},
        "versions": _versions(),
    }
    body = {
        "v": 1,
        "run": launch.run,
        "run_id": launch.run_id,
        "step": progress.step,
        "tokens": progress.tokens,
        "position": position,
        "timeline": launch.timeline,
        "plan_head": plan_head,
        "world_size": 1,
        "micro_batch": numerics.micro_batch,
        "config_digest": launch.config_digest,
        "loss": progress.loss,
        "val_loss": progress.val_loss,
        "run_record": launch.run_record,
    }
    files: list[File] = [
        *tensor_files("model", named(model_tensors(model))),
        *tensor_files("optimizer", named(optimizer.tensors())),
        ("trainer.json", [canonical_json(trainer)]),
        ("model.json", [canonical_json({"v": 1, **model.shape.body()})]),
        ("tokenizer.json", [launch.tokenizer_file.read_bytes()]),
        ("plan.jsonl", [log_up_to(launch.plan, plan_head)]),
        ("timelines.jsonl", [launch.timelines.read_bytes() if launch.timelines.exists() else b""]),
    ]
    return files, body


def _versions() -> dict[str, str]:
    """Returns the versions that the bits of a step depend on."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "stoker": version("stoker"),
    }


def log_up_to(path: Path, head: str) -> bytes:
    """Returns a chained log's bytes to the line with hash `head`; raises DataError without that line."""
    if head == GENESIS:
        return b""
    lines = path.read_bytes().split(b"\n")
    for count, line in enumerate(lines, start=1):
        if hashlib.sha256(line).hexdigest() == head:
            return b"\n".join([*lines[:count], b""])
    raise DataError(
        f"{path} no longer has the entry {head} that this run was trained by; nothing may rewrite it"
    )


class TensorCopier(Copier):
    """Copies tensors too: on a CPU at once, on CUDA by a stream of its own into pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copied: torch.cuda.Event | None = None
        self._pinned = 0  # the address of the pinned memory

    def prepare(self, memory: memoryview) -> None:
        """Pins a memory, which makes copies from CUDA several times as fast; they are right without it."""
        if self._stream is None:
            return
        # In a thread of its own: CUDA raises what it refused again, at the next kernel of the same thread.
        pinning = threading.Thread(target=self._pin, args=(memory,))
        pinning.start()
        pinning.join()

    def _pin(self, memory: memoryview) -> None:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if self._pinned:
            runtime.cudaHostUnregister(self._pinned)
        self._pinned = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        runtime.cudaHostRegister(self._pinned, memory.nbytes, 0)

    def copy(self, layout: Layout, memory: memoryview) -> None:
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):  # without one it does nothing
            for part, start, end in layout.parts:
                _copy(part, memory[start:end])
        if self._stream is not None:
            self._copied = self._stream.record_event()

    def is_done(self, *, wait: bool) -> bool:
        if self._copied is not None and wait:
            self._copied.synchronize()
        return self._copied is None or bool(self._copied.query())  # type: ignore[no-untyped-call]

    def before_update(self) -> None:
        """Lets CUDA change no tensor before it is copied; does not wait itself."""
        if self._stream is not None and self._copied is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._copied)

    def bytes_of(self, part: Any) -> memoryview:
        return flat_bytes(part).cpu().numpy().data if isinstance(part, Tensor) else super().bytes_of(part)


def _copy(part: Any, target: memoryview) -> None:
    if isinstance(part, Tensor):
        torch.frombuffer(target, dtype=torch.uint8).copy_(flat_bytes(part), non_blocking=True)
    else:
        target[:] = part


def flat_bytes(tensor: Tensor) -> Tensor:
    """Returns a tensor's bytes, where it lies, without a copy of one that is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
