"""What a trainer under test notes, in a file outside of all that Stoker touches; and how slowly it saves.

Lines: start (the state that a launch begins from), step, writing (a save begins or goes on: what lay at its
path is the trainer's own to replace), part (what is written before the pause), finished (the whole state).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
from pathlib import Path

SETTINGS = json.loads(os.environ["KILLS_SETTINGS"])
SAVE_S, PAUSE_S, STEP_S = (SETTINGS[name] for name in ("save_s", "pause_s", "step_s"))
EVERY, HAS_CLIENT, TELLS_ALL = SETTINGS["every"], SETTINGS["how"] != "glob", SETTINGS["how"] == "told"
PIECE_S = 0.25  # between two writes of a save that is slow, and never quiet


def note(kind: str, **words: object) -> None:
    """Append one line with one write: a kill leaves it whole or not there."""
    line = json.dumps({"kind": kind, "at": time.time(), "pid": os.getpid(), **words}) + "\n"
    descriptor = os.open(SETTINGS["ledger"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def started(path: str | None, read: object) -> int:
    """Note the parts of the state to begin from, as `read` finds them: {part: [step, nonce]}; its step."""
    parts, problem = {}, ""
    try:
        parts = read(path) if path else {}
    except Exception as error:  # half a file of any kind: the ledger says so, and so does the trainer
        problem = f"{type(error).__name__}: {error}"
    env = {name: os.environ[f"STOKER_{name}"] for name in ("LAUNCH", "RESUME_FROM", "RESUME_STEP")}
    note("start", path=path and os.path.abspath(path), parts=parts, problem=problem, env=env)
    if problem:
        raise SystemExit(f"cannot load {path}: {problem}")
    return min(step for step, _ in parts.values()) if parts else 0


def stepped(step: int) -> None:
    """One step was made: tell it as nanoGPT does."""
    note("step", step=step)
    print(f"iter {step}: loss {9 / step:.4f}, time 1.00ms", flush=True)


class Save:
    """A save at work; its nonce goes into every part."""

    def __init__(self, path: str, step: int) -> None:
        self.path, self.step, self.nonce = os.path.abspath(path), step, secrets.randbits(60)
        self._note("writing")

    def pause(self) -> None:
        """The pause within: what is written so far stays as it is meanwhile."""
        self._note("part", files=digests(Path(self.path)))
        time.sleep(PAUSE_S)
        self._note("writing")

    def finished(self) -> None:
        """The state is whole."""
        self._note("finished", files=digests(Path(self.path)))

    def _note(self, kind: str, **words: object) -> None:
        note(kind, path=self.path, step=self.step, nonce=self.nonce, **words)


def write_slowly(path: str, data: bytes, mode: str = "wb") -> None:
    """Write a part in place, over half of the time in which a save writes."""
    pieces = max(1, round((SAVE_S - PAUSE_S) / 2 / PIECE_S))
    size = -(-len(data) // pieces)
    with open(path, mode) as file:
        for begin in range(0, len(data), size):
            file.write(data[begin : begin + size])
            file.flush()
            time.sleep(PIECE_S)


def rewrite_slowly(path: str) -> None:
    """The same for a file that a library has just written."""
    write_slowly(path, Path(path).read_bytes())


def digests(path: Path) -> dict[str, str]:
    """The sha256 of each file by its name from the path's parent."""
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    return {str(one.relative_to(path.parent)): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


def newest(folder: str, prefix: str) -> str | None:
    """What a trainer finds that looks for its own newest checkpoint by the number in its name."""
    if not os.path.isdir(folder):
        return None
    found = [name for name in os.listdir(folder) if name.startswith(prefix)]
    return max((f"{folder}/{name}" for name in found), key=_number, default=None)


def _number(path: str) -> int:
    found = re.search(r"\d+", os.path.basename(path))
    return int(found[0]) if found else 0
