"""Worker: examines a pipeline and its machine for `stoker doctor`; a process of its own, as a disk may hang.

task: {"file", "members": the parts of the bundle to gather}
messages: {"kind": "check", "name", "findings": [[outcome, what, do]]} of each check,
    {"kind": "member", "name", "text"} of each part, {"kind": "done"}: it may be unable to end
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from stoker.kit.workers.child import Report, run_worker
from stoker.store.errors import StokerError, Transient

if TYPE_CHECKING:
    from stoker.cli.doctor.checks import Check, Finding
    from stoker.config.schema import Pipeline


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    from stoker.cli.doctor.bundle import member_text
    from stoker.cli.doctor.checks import CHECKS
    from stoker.config.load import ALLOW_NETWORK, load_pipeline

    pipeline = load_pipeline(task["file"], {**os.environ, ALLOW_NETWORK: "1"})
    mounts, *checks, slowest = CHECKS
    away = list(mounts.find(pipeline))
    report("check", name=mounts.name, findings=away)
    silent = {one.what.partition(":")[0] for one in away}
    if "state" not in silent:  # now with a look at its file system
        pipeline = load_pipeline(task["file"])
    for check in checks:
        report("check", name=check.name, findings=_found(check, pipeline, check.reads & silent))
    for name in task["members"] if "state" not in silent else ():
        report("member", name=name, text=member_text(name, pipeline))
    report("check", name=slowest.name, findings=_found(slowest, pipeline, slowest.reads & silent))
    report("done")
    return {}


def _found(check: Check, pipeline: Pipeline, silent: AbstractSet[str]) -> list[Finding]:
    from stoker.cli.doctor.checks import Finding, told

    if silent:
        return [Finding("skipped", f"not looked at, as {' and '.join(sorted(silent))} does not answer")]
    try:
        return list(check.find(pipeline))
    except StokerError as error:
        return [told("warning" if isinstance(error, Transient) else "broken", str(error))]
    except OSError as error:
        return [Finding("broken", f"{error.filename}: {error.strerror}")]
    except Exception as error:  # noqa: BLE001 - one check must not take the others with it
        traceback.print_exc()
        return [Finding("broken", f"the check itself failed: {error!r}", "report it, with --bundle")]


if __name__ == "__main__":
    run_worker(main)
