"""Before a launch: what the mirror has that this disk has not. Here a launch waits for warm, and says so.

Going back in silence to an older checkpoint, or to nothing, would train twice what was trained since.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.checkpoints.mirror.layout import Mirrored, fallback
from stoker.checkpoints.select import History
from stoker.kit.backoff import Backoff
from stoker.kit.workers.parent import WorkerExit
from stoker.plan.timelines import parse_timelines, restore_timelines
from stoker.store.errors import DataError, Transient
from stoker.store.hashing import hash_file
from stoker.store.log import read_log_data
from stoker.supervise.mirror.inventory import Checkpoint
from stokerd.supervision.mirror import MirrorDesk

AGAIN_S, AGAIN_MOST_S = 0.5, 15.0
TRY_S, LOOK_S, FETCH_S = 15.0, 60.0, 300.0  # without a word of the worker: then warm does not answer
KILLED_S = 20.0  # and then until a killed one is gone, unless it hangs in the kernel


class MirrorFallback:
    """Looks at the mirror, and fetches from it, while nothing is being trained."""

    def __init__(self, desk: MirrorDesk) -> None:
        self.desk, self.turns, self.events = desk, desk.turns, desk.events
        self._awaited = False
        self._backoff = Backoff(AGAIN_S, AGAIN_MOST_S)

    def look(self, here: Checkpoint | None, history: History, *, convicted: bool) -> bool:
        """Look where a launch from `here` must know what the mirror holds; whether lost rollbacks came back.

        `convicted`: a newer one was proven wrong on this disk just now.
        """
        wanted = self.desk.book.to_look(here.step if here else None, history, convicted=convicted)
        if wanted == "no":
            return False
        while True:
            self.turns.doing = "looking at the mirror of the checkpoints"
            ended = self._errand("list", TRY_S if wanted == "try" else LOOK_S, run_id=self._run_id(here))
            if ended.result is not None:
                break
            self.desk.failed("list", ended.reason())
            if wanted == "try":
                return False
            self._await(here, ended.reason())
        self._awaited = False
        self._backoff.reset()
        runs = ended.result["foreign"]
        if self._run_id(here) is None and len(runs) > 1:
            raise DataError(
                f"{self.desk.tasks.mirror} holds checkpoints of the runs {', '.join(runs)}, and "
                f"{self.desk.run.record} is missing; move away those that are not to be gone on with"
            )
        self.desk.listed(ended.result)
        return self._restore_timelines(ended.result["timelines"])

    def bring_newer(self, here: Checkpoint | None, history: History) -> Checkpoint | None:
        """Fetch the newest whole copy of a history that is newer than `here`; None where there is none."""
        while newer := fallback(self.desk.book.copies, history, here.step if here else -1):
            brought, why = self._fetch(newer[0])
            if brought is not None:
                return brought
            if why:
                self._await(here, why)
        return None

    def fetch_step(self, step: int, history: History) -> Path | None:
        """Bring back the checkpoint of a step; None where the mirror has no whole one. To be rolled back to.

        It is not pruned before the next launch. Raises Transient when the mirror cannot be asked now.
        """
        ended = self._errand("list", LOOK_S, run_id=self.desk.run_id())
        if ended.result is None:
            self.desk.failed("list", ended.reason())
            raise Transient(f"the mirror cannot be looked at now: {ended.reason()}; ask again later")
        self.desk.listed(ended.result)
        for copy in fallback(self.desk.book.copies, history, step - 1):
            if copy.step == step:
                brought, why = self._fetch(copy)
                if brought is not None:
                    self.desk.shelf.kept.add(brought.path.name)
                    return brought.path
                if why:
                    raise Transient(f"{copy.name} cannot be fetched from the mirror now: {why}")
        return None

    def see_to_heldout(self) -> None:
        """Bring heldout.bin back where it is not as the run's record says, if the mirror has it."""
        record = self.desk.run_book.record
        if record is None or record.heldout is None or self._is_whole(record.heldout.sha256):
            return
        words = {"path": str(self.desk.run.heldout), "sha256": record.heldout.sha256}
        while (ended := self._errand("heldout", LOOK_S, **words)).result is None:
            self.desk.failed("heldout", ended.reason())
            self._pause(f"waiting for warm, which may hold {self.desk.run.heldout.name}", ended.reason())
        self.desk.succeeded("heldout")
        state = ended.result["heldout"]
        if state == "brought":
            self.events.record("heldout_restored", "warning", source="mirror")
        elif state != "there":
            self.events.record("heldout_lost", "error", message=f"the mirror's copy is {state} too")

    def _is_whole(self, sha256: str) -> bool:
        try:
            return hash_file(self.desk.run.heldout, past_cache=False).sha256 == sha256
        except FileNotFoundError:
            return False

    def _run_id(self, here: Checkpoint | None) -> str | None:
        return self.desk.run_id() or (str(here.body["run_id"]) if here else None)

    def _restore_timelines(self, text: str | None) -> bool:
        """Append the rollbacks this disk has lost; whether there were any."""
        if text is None:
            return False
        copy = parse_timelines(read_log_data(text.encode()), "timelines.jsonl in the mirror")
        lost = restore_timelines(self.desk.run.timelines, copy)
        if lost:
            self.events.record("timelines_restored", "warning", forks=lost, source="mirror")
        return lost > 0

    def _fetch(self, copy: Mirrored) -> tuple[Checkpoint | None, str]:
        """A copy brought back and proven here, or why that cannot be done now; neither when it was bad."""
        self.turns.doing = f"fetching checkpoint {copy.name} from the mirror"
        run = self.desk.run
        ended = self._errand(
            "fetch", FETCH_S, name=copy.name, checkpoints=str(run.checkpoints), logs=self.desk.logs()
        )
        if ended.result is None:
            self.desk.failed("fetch", ended.reason())
            return None, ended.reason()
        self.desk.succeeded("fetch")
        result: Mapping[str, Any] = ended.result
        if result["state"] != "fetched":
            self.desk.book.gone([copy.name])
            self.events.record(
                "mirror_copy_bad",
                "warning",
                copy=copy.name,
                state=result["state"],
                reason=result["reason"],
                moved_to=result["set_aside"],
            )
            return None, ""
        proof = result["proof"]
        name = f"step-{proof['body']['step']:09d}"
        self.events.record(
            "checkpoint_fetched",
            "warning",
            step=copy.step,
            path=f"checkpoints/{name}",
            copy=copy.name,
            message="it was not whole, or not there, on this disk",
        )
        if result["logs"]:
            self.events.record("run_logs_restored", "warning", paths=result["logs"], source="mirror")
        return self.desk.shelf.proven(run.checkpoints / name, proof["body"], proof["digest"]), ""

    def _await(self, here: Checkpoint | None, reason: str) -> None:
        has = f"step {here.step} is the newest proven here" if here else "nothing is proven here"
        if not self._awaited:
            self._awaited = True
            self.events.record(
                "mirror_awaited",
                "warning",
                reason=reason,
                message=f"{has}, and warm may hold a newer checkpoint: the run waits for it. If warm is lost "
                "for good, set train.checkpoint.mirror: false and start again",
            )
        self._pause(f"waiting for warm, which may hold a newer checkpoint ({has})", reason)

    def _pause(self, doing: str, reason: str) -> None:
        self.turns.pause(self._backoff.next(), f"{doing}: {reason}; trying")

    def _errand(self, verb: str, quiet_s: float, **words: Any) -> WorkerExit:
        """Have the mirror's worker do something now; raises as turn_or_stop does.

        One that says nothing for quiet_s seconds is killed, and left alone if even that does not end it.
        """
        self.desk.cancel()
        self.desk.lent = True
        try:
            return self._ended(verb, quiet_s, words)
        finally:
            self.desk.lent = False
            self.desk.cancel()  # if nobody waits for it any more: what it writes is about to be swept

    def _ended(self, verb: str, quiet_s: float, words: Mapping[str, Any]) -> WorkerExit:
        tasks, asked_at = self.desk.tasks, time.monotonic()
        while not tasks.alone():
            self.turns.turn_or_stop()
            if time.monotonic() - asked_at > quiet_s:
                return _no_answer(quiet_s)
        tasks.start(verb, quiet_s=quiet_s, expected=self.desk.book.expected, **words)
        while (ended := tasks.hear()) is None:
            self.turns.turn_or_stop()
            if tasks.quiet_s > quiet_s + KILLED_S:
                return _no_answer(tasks.quiet_s)
        return ended


def _no_answer(waited_s: float) -> WorkerExit:
    return WorkerExit("timed_out", None, None, None, None, 0, wall_s=waited_s)
