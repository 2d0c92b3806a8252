"""The test's side of a hub on loopback: a process that serves a folder, and what it was asked for."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from support.loopback_faults import Fault

REPO = "org/data"


def noise(size: int, seed: int) -> bytes:
    """Bytes that no two files share."""
    return random.Random(seed).randbytes(size)


class LoopbackHub:
    """A hub, its CDN and a plain web server; start it with `with`."""

    def __init__(self, root: Path, *, page: int = 1000, send_buffer: int = 64 << 10) -> None:
        self.root = root
        self._options = [str(root), str(page), str(send_buffer)]
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        for folder in (f"dataset/{REPO}", "urls"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> LoopbackHub:
        tests = Path(__file__).parents[1]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.loopback_server", *self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tests)},
            start_new_session=True,  # Ctrl-C in a terminal is not for it: it ends with its input
        )
        self.port = json.loads(self._line())["port"]
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _stack: TracebackType | None
    ) -> None:
        assert self._process is not None and self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, name: str) -> str:
        """Where a plain file is."""
        return f"{self.endpoint}/files/{name}"

    def put(self, path: str, data: bytes, *, repo: str = f"dataset/{REPO}") -> str:
        """Store a file, or another content of it; returns its sha256."""
        file = self.root / repo / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def fault(self, kind: str, **fields: Any) -> None:
        """Have something go wrong; see Fault."""
        self.control("fault", **Fault(kind, **fields).to_fields())

    def control(self, do: str, **fields: Any) -> Any:
        """Send a line to the hub and take its answer."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._line())["answer"]

    def requests(self, path: str = "") -> list[dict[str, Any]]:
        """Every request so far whose path holds `path`."""
        return [each for each in self.control("log")["requests"] if path in each["path"]]

    def served(self, path: str = "") -> int:
        """Body bytes sent so far of the files whose path holds `path`."""
        return sum(size for name, size in self.control("log")["served"].items() if path in name)

    def _line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the loopback hub ended"
        return line
