"""Worker: lists a repository of a hub at a commit. See `listing`.

It sends each request once: the daemon makes the pauses. It is silent while the hub does not answer.

task, besides: {"hub": {"repo", "repo_type", "endpoint"}, "token_file", "revision",
    "pinned": the commit to list, or null for what `revision` means now}
messages, besides: {"kind": "pinned", "revision"}, {"kind": "reading", "files"} now and then
"""

from __future__ import annotations

from typing import Any

from stoker.corpus.http.hub import HubRepo, hub_token
from stoker.corpus.http.remote_file import clashes, printable, unsafe
from stoker.corpus.source.folder import Selection
from stoker.corpus.source.hub_api import HubApi
from stoker.corpus.source.listing import FILES_A_MESSAGE, Row, report_files, run_lister, unchanged
from stoker.kit.workers.child import Report


def listed(task: dict[str, Any], selection: Selection, report: Report) -> dict[str, Any]:
    hub = HubApi(HubRepo(**task["hub"]), hub_token(task["token_file"]))
    commit = task["pinned"] or hub.commit(task["revision"])
    if commit == task["known"]:
        return unchanged(commit)
    report("pinned", revision=commit)
    good: list[Row] = []
    refused: list[tuple[str, str]] = []
    for number, row in enumerate(hub.files(commit), 1):
        if number % FILES_A_MESSAGE == 0:
            report("reading", files=number)  # so that a long listing does not look like a hang
        if reason := unsafe(row[0]):
            # Reported even if not selected: a name made to deceive may match or not.
            refused.append((printable(row[0]), reason))
        elif selection.takes(row[0]):
            good.append(row)
    clashing = clashes([row[0] for row in good])
    refused += [(printable(path), reason) for path, reason in clashing.items()]
    return report_files(report, commit, [row for row in good if row[0] not in clashing], refused)


if __name__ == "__main__":
    run_lister(listed)
