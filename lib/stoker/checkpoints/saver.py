"""Saves a trainer's states: when a save is due, the copy that is handed to the sealer, what becomes of it.

One save is in flight. Training goes on while the sealer writes; only the copy stops it, or the whole save
where the machine lacks the memory for a copy. A save that failed is told, and the next one that is due tries
again; the second failure in a row is raised.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stoker.checkpoints.handover import File, Layout, Memory, Sealer, lay_out
from stoker.checkpoints.seal import CheckpointWriter
from stoker.observe.machine import MemoryWatch
from stoker.store.errors import StorageError

SPARE_BYTES = 256 << 20  # of the machine's memory, which a copy leaves
GRAIN_BYTES = 4 << 20  # the copy's memory grows by: a plan's copy becomes longer from save to save
MOST_FAILURES = 2
TELL_S = 1.0  # between two words on the bytes written


class Copier:
    """Copies the parts of a state; this one those in host memory, at once."""

    def prepare(self, memory: memoryview) -> None:
        """Makes a memory ready to be copied into."""

    def copy(self, layout: Layout, memory: memoryview) -> None:
        """Begins to copy every part to its place."""
        for part, start, end in layout.parts:
            memory[start:end] = self.bytes_of(part)

    def is_done(self, *, wait: bool) -> bool:
        """Returns whether all parts are copied; waits for them if asked to."""
        return True

    def bytes_of(self, part: Any) -> memoryview:
        """Returns a part's bytes in host memory."""
        return memoryview(part).cast("B")


class Saver:
    """The saves of one launch, which resumed from step `step`.

    Every call may raise StorageError (a second failure in a row) and DataError (two histories of one run).
    """

    def __init__(
        self,
        sealer: Sealer,
        copier: Copier,
        say: Callable[..., None],
        *,
        step: int,
        every: tuple[float | None, int | None],
        skips: bool = False,
        headroom: Callable[[], int] = lambda: MemoryWatch().sample().headroom_bytes,
    ) -> None:
        """`every` is in seconds and in steps; `skips`: a save that is due while one is in flight.

        `say` tells the supervisor checkpoint=name, done=bytes, save_failed=why or save_in_place=why.
        """
        self.saved_step, self._saved_at = step, time.monotonic()  # of the last save that has not failed
        self._sealer, self._copier, self._say = sealer, copier, say
        self._every, self._skips, self._headroom = every, skips, headroom
        self._memory = Memory()
        self._reserving: threading.Thread | None = None
        self._sealed_step = step
        self._pending: int | None = None  # the step in flight
        self._copying: Layout | None = None  # of the step in flight, until it is handed over
        self._failures = 0
        self._written_bytes, self._told_at = 0, 0.0  # in place
        self._is_told = False  # that memory is short

    def is_due(self, step: int) -> bool:
        """Looks after the save in flight, and returns whether to save now."""
        self.poll()
        if self._pending is not None and self._skips:
            return False
        return is_due(
            *self._every, step=step, saved_step=self.saved_step, unsaved_s=time.monotonic() - self._saved_at
        )

    def has_sealed(self, step: int) -> bool:
        """Returns whether a step's checkpoint is sealed, or was resumed from, and no save is in flight."""
        return self._pending is None and self._sealed_step == step

    def prepare(self, files: Sequence[File], body: Mapping[str, Any]) -> None:
        """Takes the memory for a copy in the background, so that the first save need not wait for it."""
        size = lay_out(files, body).size
        self._reserving = threading.Thread(target=self._reserve, args=(size,), daemon=True)
        self._reserving.start()

    def save(self, files: Sequence[File], body: Mapping[str, Any]) -> None:
        """Saves a state after the save in flight; on return it is copied, or being copied by the device."""
        if self._reserving is not None:
            self._reserving.join()
        self.wait()
        self.saved_step, self._saved_at = body["step"], time.monotonic()
        self._pending = self.saved_step
        layout = lay_out(files, body)
        if why := self._reserve(layout.size):
            self._save_in_place(files, body, why)
            return
        self._copying = layout
        self._copier.copy(layout, self._memory.view)
        self._memory.view[layout.at : layout.size] = layout.description
        self.poll()

    def poll(self) -> None:
        """Hands over a state once it is copied, and hears what became of it."""
        self._go_on(wait=False)

    def wait(self) -> None:
        """Waits until no save is in flight."""
        while self._pending is not None:
            self._go_on(wait=True)
            if self._pending is not None:
                self._tell_done()

    def _go_on(self, *, wait: bool) -> None:
        if self._pending is None or (self._copying is not None and not self._copier.is_done(wait=wait)):
            return
        try:
            if self._copying is not None:
                layout, self._copying = self._copying, None
                self._sealer.give(self._memory, layout)
            sealed = self._sealer.answer(wait=wait)
        except StorageError as problem:
            self._fail(problem)
        else:
            if sealed:
                self._succeed(sealed)

    def _save_in_place(self, files: Sequence[File], body: Mapping[str, Any], why: str) -> None:
        if not self._is_told:
            print(f"trainer: {why}", file=sys.stderr)
            self._say(save_in_place=why)
        self._is_told = True
        self._told_at = time.monotonic()
        try:
            with CheckpointWriter(self._sealer.checkpoints, body["step"], self._sealer.launch) as writer:
                for name, parts in files:
                    writer.add(name, self._told(parts))
                sealed = writer.seal(body)
        except StorageError as problem:
            self._fail(problem)
        else:
            self._succeed(sealed.name)

    def _told(self, parts: Sequence[Any]) -> Iterator[memoryview]:
        """Yields the bytes of parts that are written in place, and tells how many are written."""
        for part in parts:
            yield (data := self._copier.bytes_of(part))
            self._written_bytes += data.nbytes
            if time.monotonic() - self._told_at >= TELL_S:
                self._tell_done()

    def _tell_done(self) -> None:
        self._told_at = time.monotonic()
        self._say(done=self._written_bytes + self._sealer.written_bytes)

    def _succeed(self, name: str) -> None:
        assert self._pending is not None
        self._sealed_step, self._pending, self._failures = self._pending, None, 0
        self._say(checkpoint=name)

    def _fail(self, problem: StorageError) -> None:
        """Tells a first failure, raises the second; the sealer's memory is ours again."""
        self._pending = self._copying = None
        self.saved_step = self._sealed_step
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            raise problem
        print(f"trainer: this save failed, the next one tries again: {problem}", file=sys.stderr)
        self._say(save_failed=problem)

    def _reserve(self, size: int) -> str:
        """Takes the memory for a copy; returns why there is none, "" if there is."""
        has = self._memory.view.nbytes
        if size <= has:
            return ""
        size += -size % GRAIN_BYTES
        room = self._headroom() - SPARE_BYTES
        short = f"a checkpoint is written while training waits: a copy takes {size - has:,} bytes more and"
        if room < size - has:
            return f"{short} {max(0, room):,} may be taken"
        try:
            self._memory.reserve(size)
        except OSError as error:
            return f"{short} the kernel refuses them ({os.strerror(error.errno or 0)})"
        self._copier.prepare(self._memory.view)
        return ""


def is_due(
    every_s: float | None, every_steps: int | None, *, step: int, saved_step: int, unsaved_s: float
) -> bool:
    """Returns whether to save a run that was last saved `unsaved_s` ago; never twice at the same step."""
    if step == saved_step:
        return False
    by_steps = every_steps is not None and step % every_steps == 0
    return by_steps or (every_s is not None and unsaved_s >= every_s)
