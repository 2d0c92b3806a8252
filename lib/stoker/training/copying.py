"""Copies the tensors of a state to memory while training waits, so that the sealer can write them."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from stoker.checkpoints.handover import Layout
from stoker.checkpoints.saver import Copier


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
