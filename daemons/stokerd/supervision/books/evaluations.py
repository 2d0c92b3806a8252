"""Keeps evaluations.jsonl of a run, and promoted.json, which follows from it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.retention import counts
from stoker.store.files import unlink_durably
from stoker.store.log import ChainedLog, read_log
from stoker.store.record import utc_now, write_record
from stoker.supervise.evaluation.lines import EvaluationLine, parse_line
from stoker.supervise.evaluation.promotion import decide_promotion, regressed
from stoker.supervise.mirror.inventory import Checkpoint

if TYPE_CHECKING:
    from stokerd.supervision.run import Run

KEEP_SAMPLES = 50  # the newest files; besides them those of the promoted checkpoint


class EvaluationBooks:
    """What a run's evaluations found, oldest first. The log decides; promoted.json follows it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        log = read_log(run.layout.evaluations_log)
        if log.damage:
            run.events.record("record_damaged", message=log.damage[0])
        self._all = [(parse_line(body), line) for body, line in zip(log.entries, log.hashes, strict=True)]
        self._carry_out()

    @property
    def lines(self) -> list[EvaluationLine]:
        """Those that count: of checkpoints on the run's history."""
        history = self._run.accounts.history()
        return [one for one, _ in self._all if counts(one.timeline, one.step, history)]

    def done(self) -> dict[str, set[int]]:
        """Returns the steps by suite that have ended, failed or not."""
        found: dict[str, set[int]] = {}
        for one in self.lines:
            found.setdefault(one.suite, set()).add(one.step)
        return found

    def baseline(self, suite: str) -> dict[str, Any] | None:
        """Returns the promoted checkpoint for a worker, with what is known of it by a suite."""
        run, (record, digest) = self._run, self._run.promoted()
        if record is None or digest is None:
            return None
        known = [one for one in self.lines if (one.checkpoint_digest, one.suite) == (digest, suite)]
        last = next((one for one in reversed(known) if one.invalid is None), None)
        there = run.checkpoints.get(record["checkpoint"])
        return {
            "checkpoint": str(there.path) if there is not None and there.digest == digest else None,
            "digest": digest,
            "suite_digest": last.suite_digest if last is not None else "",
            "samples": last.samples if last is not None else "",
        }

    def judge(self, of: Checkpoint, found: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Returns the line of what a worker found, with what it decides; and the metrics that got worse."""
        policy, (_, promoted) = self._run.pipeline.promote, self._run.promoted()
        at = {"step": of.step, "timeline": int(of.body["timeline"])}
        body = {"v": 1, "time": utc_now(), **at, **found}
        line = parse_line(body)
        promotion = decide_promotion(policy, [*self.lines, line], of.digest, promoted)
        body["promotion"] = {"verdict": promotion.verdict, "why": list(promotion.why)}
        return body, regressed(policy, [line], promoted)

    def append(self, body: Mapping[str, Any]) -> None:
        """Appends a line durably, carries out what it decides, and removes old samples."""
        with contextlib.closing(ChainedLog(self._run.layout.evaluations_log)) as log:
            self._all.append((parse_line(body), log.append(body)))
        self._carry_out()
        _, promoted = self._run.promoted()
        for one, _ in self._all[:-KEEP_SAMPLES]:
            path = self._run.layout.evaluations / one.samples
            if one.samples and one.checkpoint_digest != promoted and path.exists():
                unlink_durably(path)

    def _carry_out(self) -> None:
        """Writes promoted.json by the last line that promotes, unless that is done; a kill may come before.

        A line that a rollback went back past promotes nothing any more, nor does one before it: what that
        promoted may be pruned by now.
        """
        run, last = (
            self._run,
            next((one for one in reversed(self._all) if one[0].promotion == "promoted"), None),
        )
        before, _ = run.promoted()
        if last is None or last[1] == (before or {}).get("line") or last[0] not in self.lines:
            return
        (one, line), name = last, checkpoint_name(last[0].step)
        body = {"v": 1, "step": one.step, "timeline": one.timeline, "checkpoint": name, "line": line}
        write_record(run.layout.promoted, {**body, "digest": one.checkpoint_digest})
        run.keep_milestones()
        run.events.record("checkpoint_promoted", step=one.step, checkpoint=name, before=before and before["step"])

    def shown(self) -> dict[str, Any]:
        """Returns what status and metrics show: of each suite the newest results."""
        last = {one.suite: one for one in self.lines if one.invalid is None}
        record, digest = self._run.promoted()
        return {
            "step": {suite: one.step for suite, one in last.items()},
            "value": {s: {m: found.value for m, found in one.metrics.items()} for s, one in last.items()},
            "verdict": {m: {shown.verdict: 1} for one in last.values() for m, shown in one.verdicts.items()},
            "promoted_step": record["step"] if record is not None and digest is not None else None,
        }
