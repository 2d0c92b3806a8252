"""Keeps evaluations.jsonl of a run, and promoted.json, which follows from it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from typing import Any

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.retention import counts
from stoker.store.files import canonical_json, unlink_durably
from stoker.store.log import ChainedLog, read_entries
from stoker.store.record import utc_now, write_record
from stoker.supervise.evaluation.lines import EvaluationLine, parse_line
from stoker.supervise.evaluation.promotion import decide_promotion, regressed
from stoker.supervise.mirror.inventory import Checkpoint
from stokerd.supervision.run import Run

NOTHING = {"suite_digest": "", "samples": ""}  # of a suite that the promoted checkpoint has no results of
KEEP_SAMPLES = 50  # the newest files; besides them those of the promoted checkpoint


class EvaluationBooks:
    """`lines` are the evaluations that count in the run's history; read anew after a rollback.

    The log decides; promoted.json follows it.
    """

    def __init__(self, run: Run) -> None:
        self._run, self.lines = run, list[EvaluationLine]()
        self._promoting: tuple[EvaluationLine, str] | None = None  # the last of all, and its line's hash
        entries, damage = read_entries(run.layout.evaluations_log, _entry, "evaluation")
        if damage:
            run.events.record("record_damaged", message=damage[0])
        for line, hash_ in entries:
            self._add(line, hash_)
        self._carry_out()

    def _add(self, line: EvaluationLine, hash_: str) -> None:
        if counts(line.timeline, line.step, self._run.accounts.history()):
            self.lines.append(line)
        if line.promotion == "promoted":
            self._promoting = line, hash_

    def _carry_out(self) -> None:
        """Writes promoted.json by the last line that promotes, unless it is written; a kill may come before.

        Where a rollback went back past that line, none before it promotes again: its checkpoint may be gone.
        """
        run, before = self._run, self._run.promoted()
        line, hash_ = self._promoting or (None, "")
        if line is not None and line in self.lines and before.get("line") != hash_:
            found = {"step": line.step, "checkpoint": checkpoint_name(line.step)}
            of = {"timeline": line.timeline, "digest": line.checkpoint_digest, "line": hash_}
            write_record(run.layout.promoted, {"v": 1, **found, **of})
            run.keep_milestones()
            run.events.record("checkpoint_promoted", **found, before=before.get("step"))

    def done(self) -> dict[str, set[int]]:
        """Returns the steps by suite whose evaluations have ended, failed or not."""
        suites = {line.suite for line in self.lines}
        return {suite: {line.step for line in self.lines if line.suite == suite} for suite in suites}

    def baseline(self, suite: str, of: str) -> dict[str, Any] | None:
        """Returns the promoted checkpoint for a worker, with what a suite found of it.

        None without one, and for the promoted checkpoint itself, whose digest is `of`.
        """
        promoted = self._run.promoted()
        if promoted.get("digest") in (None, of):
            return None
        digest, there = promoted["digest"], self._run.checkpoints.get(promoted["checkpoint"])
        wanted = digest, suite, None
        ours = [one for one in self.lines if (one.checkpoint_digest, one.suite, one.invalid) == wanted]
        path = str(there.path) if there is not None and there.digest == digest else None
        known = {"suite_digest": ours[-1].suite_digest, "samples": ours[-1].samples} if ours else NOTHING
        return {"checkpoint": path, "digest": digest, **known}

    def judge(self, of: Checkpoint, found: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Returns the line of what a worker found, and the metrics worse than the promoted checkpoint's."""
        run, promoted = self._run, self._run.promoted().get("digest")
        body = {"v": 1, "time": utc_now(), "step": of.step, "timeline": int(of.body["timeline"]), **found}
        line, policy = parse_line(body), run.pipeline.promote
        decided = decide_promotion(policy, [*self.lines, line], of.digest, promoted)
        body["promotion"] = {"verdict": decided.verdict, "why": list(decided.why)}
        return body, regressed(policy, [line], promoted)

    def add(self, body: Mapping[str, Any]) -> None:
        """Appends a line, durably, and carries out what it decides."""
        run = self._run
        with contextlib.closing(ChainedLog(run.layout.evaluations_log)) as log:
            self._add(parse_line(body), log.append(body))
        self._carry_out()
        for old in self.lines[:-KEEP_SAMPLES]:
            path = run.layout.evaluations / old.samples
            if old.checkpoint_digest != run.promoted().get("digest") and path.is_file():
                unlink_durably(path)

    def shown(self) -> dict[str, Any]:
        """Returns what status and metrics show: of each suite the newest results."""
        last = {line.suite: line for line in self.lines if line.invalid is None}
        return {
            "step": {suite: line.step for suite, line in last.items()},
            "value": {name: {m: one.value for m, one in line.metrics.items()} for name, line in last.items()},
            "verdict": {m: {one.verdict: 1} for line in last.values() for m, one in line.verdicts.items()},
            "promoted_step": self._run.promoted().get("step"),
        }


def _entry(body: Mapping[str, Any]) -> tuple[EvaluationLine, str]:
    """Returns a line and its hash in the log."""
    return parse_line(body), hashlib.sha256(canonical_json(body)).hexdigest()
