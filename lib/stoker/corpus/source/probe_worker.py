"""Worker: how fast a source sends, by reading the first files for a while and keeping nothing.

task: {"files": [RemoteFile's fields], "seconds", "hub": {"repo", "repo_type", "endpoint"} or null,
       "token_file"}
result: {"status": "probed", "bytes", "seconds", "sizes": [of each file whose size the server told]} or
    {"status": "failed", "class", "reason"}
"""

from __future__ import annotations

import threading
import time
from typing import Any

from stoker.corpus.http.client import Caller, Manners
from stoker.corpus.http.hub import HubRepo, hub_token
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import FetchFailed, Kept, judge
from stoker.kit.workers.child import Report, run_worker

_CONNECT_S, _READ_S = 20.0, 20.0


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Read every file at once until the time is up, each at most to its end."""
    hub = task["hub"] and HubRepo(**task["hub"])
    manners = Manners(_CONNECT_S, _READ_S, hub, hub_token(task["token_file"]) if hub else None)
    probes = [_Probe(Caller(manners), RemoteFile(**each)) for each in task["files"]]
    began = time.monotonic()
    for probe in probes:
        probe.start()
    for probe in probes:
        probe.join(max(0.0, began + task["seconds"] - time.monotonic()))
    took_s = time.monotonic() - began
    read = sum(probe.read for probe in probes)
    failure = next((probe.failure for probe in probes if probe.failure is not None), None)
    if failure is not None and not read:
        return {"status": "failed", "class": failure.kind, "reason": failure.reason}
    sizes = [probe.size for probe in probes if probe.size is not None]
    return {"status": "probed", "bytes": read, "seconds": took_s, "sizes": sizes}


class _Probe(threading.Thread):
    def __init__(self, caller: Caller, file: RemoteFile) -> None:
        super().__init__(daemon=True)
        self.read = 0
        self.size: int | None = None
        self.failure: FetchFailed | None = None
        self._caller, self._file = caller, file

    def run(self) -> None:
        try:
            with self._caller.open(self._file.url) as body:
                self.size = judge(body.answer, Kept(), self._file).total
                for chunk in body.chunks():
                    self.read += len(chunk)
        except FetchFailed as failure:
            self.failure = failure


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
