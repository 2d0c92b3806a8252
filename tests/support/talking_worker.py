"""A worker for tests: does what its task says."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from stoker.kit.workers.child import InputClosed, Report, run_worker
from stoker.store.errors import DataError


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:  # noqa: PLR0912, PLR0915
    do = task["do"]
    if do == "echo":
        for word in task["words"]:
            report("word", word=word)
        print("printed, which is not a message")
        os.system("echo printed by a child")
    elif do == "say":
        report("word", word=task["word"])
    elif do == "raise":
        raise DataError("row group 17 is rotten")
    elif do == "bug":
        raise KeyError("surprise")
    elif do == "disk":
        Path("/proc/1/nonexistent/file").write_text("")
    elif do == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif do == "exit":
        os._exit(task["code"])
    elif do == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        report("hanging")
        while True:
            time.sleep(60)
    elif do == "work until stopped":
        report("working", pid=os.getpid())
        while True:
            report.raise_if_stopping()
            time.sleep(0.01)
    elif do == "leave a helper":
        pid = os.spawnvp(os.P_NOWAIT, "sleep", ["sleep", "1000"])
        report("helper", pid=pid)
    elif do == "answer":
        count = 0
        try:
            while (message := report.receive()) is not None:
                count += 1
                report("answer", to=message["ask"])
        except InputClosed:
            return {"answered": count}
        return {"stopped_after": count}
    elif do == "pid":
        return {"pid": os.getpid()}
    elif do == "allocate":
        held = bytearray(b"x") * task["bytes"]
        report("allocated", bytes=len(held))
        while True:
            time.sleep(0.05)
    elif do == "read":
        report("reading")
        return {"bytes": len(Path(task["path"]).read_bytes())}
    elif do == "burn":
        report("burning")
        while True:  # a third of a core, which is work
            began = time.process_time()
            while time.process_time() < began + 0.01:
                pass
            time.sleep(0.02)
    elif do == "recycle":
        return {"status": "recycled", "pid": os.getpid()}
    elif do == "long line":
        report("long", text="x" * task["bytes"])
    elif do == "garble":
        os.write(report._output, b"{not json\n[1,2]\n")
        sys.stderr.write("err %d\n" * 400 % tuple(range(400)))
    return {"task_bytes": len(str(task))}


if __name__ == "__main__":
    run_worker(main)
