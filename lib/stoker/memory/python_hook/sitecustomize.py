"""Runs inside a watched Python program: reports Arrow's and Python's own memory to `stoker memory record`.

Python imports this module at its start because its directory is on PYTHONPATH. STOKER_MEMORY_REPORT names an
inherited pipe, its inode and the seconds between two reports. An older Python may run this, and one without
Stoker, so nothing else of Stoker is used; nothing that goes wrong here may touch the program.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from typing import Any

TOP_LINES, PATH_CHARS = 5, 300
LINE_BYTES = 4096  # PIPE_BUF: written whole or not at all
# A list of all blocks stops the program while it is made, for this share of the time at most; and it takes
# memory for that moment, six times what the tracer takes, which is some 55 bytes a block.
LIST_SHARE, LIST_FIRST_S, LIST_EVERY_S = 0.02, 10.0, 60.0
MOST_TRACER_BYTES = 64 << 20


def _start() -> None:
    number, inode, every_s = os.environ["STOKER_MEMORY_REPORT"].split(":")
    found = os.fstat(int(number))
    if not stat.S_ISFIFO(found.st_mode) or found.st_ino != int(inode):
        return  # a parent closed the pipe, and another file has its number
    import atexit
    import threading
    import tracemalloc

    tracemalloc.start()
    reporter = _Reporter(os.dup(int(number)), float(every_s))
    atexit.register(reporter.report, is_last=True)
    threading.Thread(target=reporter.run, name="stoker-memory", daemon=True).start()


class _Reporter:
    def __init__(self, descriptor: int, every_s: float) -> None:
        self.descriptor, self.every_s = descriptor, every_s
        self.list_due = time.monotonic() + LIST_FIRST_S

    def run(self) -> None:
        while self.report():
            time.sleep(self.every_s)

    def report(self, is_last: bool = False) -> bool:
        """Writes a line; False when the recorder is gone."""
        import json
        import tracemalloc

        body: dict[str, Any] = {"pid": os.getpid(), "traced": tracemalloc.get_traced_memory()[0]}
        allocated = getattr(sys.modules.get("pyarrow"), "total_allocated_bytes", None)
        if allocated is not None:
            body["arrow"] = allocated()
        began = time.monotonic()
        if is_last or began >= self.list_due:
            body["top"] = _top_lines()
            spent_s = time.monotonic() - began
            self.list_due = began + max(LIST_EVERY_S, spent_s / LIST_SHARE)
        line = json.dumps(body).encode() + b"\n"
        try:
            return len(line) > LINE_BYTES or os.write(self.descriptor, line) > 0
        except OSError:
            return False


def _top_lines() -> list[tuple[str, int]]:
    """Returns the lines of code that hold most memory, with their bytes."""
    import tracemalloc

    if not tracemalloc.is_tracing() or tracemalloc.get_tracemalloc_memory() > MOST_TRACER_BYTES:
        return []
    sizes: dict[Any, int] = {}
    # Not Snapshot.statistics(), which makes an object of each block and takes ten times as long.
    blocks: Any = tracemalloc.take_snapshot().traces
    for _domain, size, frames, *_ in blocks._traces:
        sizes[frames] = sizes.get(frames, 0) + size
    own = (tracemalloc.__file__, __file__)
    places = {frames: size for frames, size in sizes.items() if frames[0][0] not in own}
    top = sorted(places, key=places.__getitem__, reverse=True)[:TOP_LINES]
    return [("{}:{}".format(*frames[0])[-PATH_CHARS:], places[frames]) for frames in top]


def _load_hidden() -> None:
    """Loads the sitecustomize that this one hides, as Python would have done."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would double the start
    spec = PathFinder.find_spec("sitecustomize", [place for place in sys.path if place != here])
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    _start()
except Exception as error:  # noqa: BLE001 - the program must run all the same
    print(f"stoker: no reports of memory from inside: {error!r}", file=sys.stderr)
_load_hidden()
