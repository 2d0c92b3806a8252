"""Worker: examines a pipeline and its machine for `stoker doctor`; a process of its own, as a disk may hang.

task: {"file", "members": the parts of the bundle to gather}
messages: {"kind": "check", "name", "found": [[outcome, what, do]]} of each check,
    {"kind": "member", "name", "found": its text} of each part, {"kind": "done"}: it may be unable to end
"""

from __future__ import annotations

import traceback
from typing import Any

from stoker.cli.doctor.bundle import member_text
from stoker.cli.doctor.checks import CHECKS, Find, Finding, mounts, told
from stoker.cli.doctor.command import load
from stoker.config.schema import Pipeline
from stoker.kit.workers.child import Report, run_worker
from stoker.store.errors import StokerError, Transient


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    pipeline = load(task["file"])
    away = list(mounts(pipeline))
    silent = {one.what.partition(":")[0] for one in away}
    for name, find, _, reads in CHECKS:
        report("check", name=name, found=away if find is mounts else _found(find, pipeline, reads & silent))
    for name in task["members"] if "state" not in silent else ():
        report("member", name=name, found=member_text(name, pipeline))
    report("done")
    return {}


def _found(find: Find, pipeline: Pipeline, silent: frozenset[str]) -> list[Finding]:
    if silent:
        return [Finding("skipped", f"not looked at, as {' and '.join(sorted(silent))} does not answer")]
    try:
        return list(find(pipeline))
    except (StokerError, OSError) as error:
        return [told("warning" if isinstance(error, Transient) else "broken", str(error))]
    except Exception as error:  # noqa: BLE001 - one check must not take the others with it
        traceback.print_exc()
        return [Finding("broken", f"the check itself failed: {error!r}", "report it, with --bundle")]


if __name__ == "__main__":
    run_worker(main)
