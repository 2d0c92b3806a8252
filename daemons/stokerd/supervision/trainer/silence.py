"""What is recorded of a trainer that may hang: the state and the stacks of its processes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from stoker.kit.process import ProcessId, children_tree
from stoker.store.record import utc_now
from stoker.supervise.health import stacks
from stoker.supervise.trainer import Trainer
from stokerd.supervision.run import Run


class SilenceRecorder:
    def __init__(self, run: Run) -> None:
        self.run = run
        self._places: tuple[str, Any] = ("", None)  # where the ranks of a launch were when last looked at

    def record_silence(self, event: str, trainer: Trainer, guard: int, why: str) -> None:
        """Records why a trainer may hang, with what its processes below the guard do."""
        words = {"launch": trainer.launch.launch, "phase": trainer.view.phase, "reason": why}
        tree = children_tree(guard)
        processes = [line for line in stacks.of_kernel(tree) if not line.startswith(" ")]
        self.run.events.record(event, step=trainer.step, processes=processes, **words)
        self._take_stacks(trainer, tree, why)

    def _take_stacks(self, trainer: Trainer, tree: Sequence[ProcessId], why: str) -> None:
        run, launch, announced = self.run, trainer.launch.launch, trainer.view.announced
        file, files = run.layout.stacks(launch), {rank: run.layout.stacks(launch, rank) for rank in announced}
        groups = stacks.grouped(stacks.take(tree, announced, files))
        head = f"{utc_now()}, step {trainer.step}, phase {trainer.view.phase}: {why}"
        with contextlib.suppress(OSError):  # a full disk
            stacks.append(file, stacks.report(head, groups, tree))
        places = [(group.ranks, group.place) for group in groups]
        words: dict[str, Any] = {"launch": launch, "step": trainer.step, "file": str(file)}
        words |= {"ranks": sum(len(group.ranks) for group in groups)}
        words |= {"at": groups[0].place[0] if groups and groups[0].place else "the kernel's view alone"}
        words |= {"odd_ranks": list(odd)} if (odd := stacks.odd_ranks(groups)) else {}
        words |= {"is_as_before": self._places[1] == places} if self._places[0] == launch else {}
        self._places = (launch, places)
        run.events.record("stacks_taken", **words)
