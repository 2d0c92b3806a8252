"""The files of launches in a run's log/: what each trainer printed, and its stacks; old launches' go."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

KEPT_LAUNCHES = 5  # besides the one that begins
MOST_BYTES = 256 << 10  # of a file that are looked at
MOST_CHARACTERS = 500  # of a line
_LAUNCH_FILE = re.compile(r"(?:output|stacks)-(\d{8}T\d{6}Z-[0-9a-f]{8})(?:-\w+)?\.txt")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|(?:^|_)(?:API_?)?KEY(?:_|$)", re.IGNORECASE)
_RANK = re.compile(r"\[[a-z]+\d+\]: ?")  # of torchrun's ranks, before each line
_FRAME = re.compile(r'\s+File ".*", line \d+')
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?::.*)?")
# What stands after the line of the error that ends a program: more of its message, CUDA's hints, torchrun's
# summary, last words of libraries.
_AFTER_ERROR = re.compile(
    r"\s|CUDA kernel errors|For debugging consider|Compile with `TORCH|Device-side assertion|[=-]+$"
    r"|\S+ FAILED$|Failures:$|Root Cause |\[\d+\]:$|\[W|wandb: "
)
_LEAST_SECRET = 8  # characters: a shorter value hides half of each line


def last_lines(path: Path, count: int) -> list[str]:
    """Returns the last lines of what a trainer printed, each as a terminal shows it; none without the file.

    Of a line that was written over and over (by carriage returns) the last text counts. Bytes that are no
    text become U+FFFD, other control characters spaces; a long line keeps its end.
    """
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - MOST_BYTES))
            text = stream.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    shown = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    plain = ("".join(c if c.isprintable() else " " for c in line).rstrip() for line in shown)
    return [line[-MOST_CHARACTERS:] for line in plain if line][-count:]


def uncaught(lines: Sequence[str]) -> str:
    """Returns the line that names the error with which a Python program ended; "" where none ended it.

    An error that was caught and printed has other lines after its trace.
    """
    plain = [text for line in lines if (text := _RANK.sub("", line))]
    while plain and _AFTER_ERROR.match(plain[-1]):
        plain.pop()
    if not plain or not _ERROR.fullmatch(error := plain.pop()):
        return ""
    trace = itertools.takewhile(lambda line: line[0].isspace(), reversed(plain))
    return error if any(map(_FRAME.match, trace)) else ""


def without_secrets(lines: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Returns the lines with *** for each value of a variable whose name speaks of a secret."""
    secrets = [
        value for name, value in environ.items() if _SECRET.search(name) and len(value) >= _LEAST_SECRET
    ]
    hidden = re.compile("|".join(map(re.escape, sorted(secrets, key=len, reverse=True))) or r"(?!)")
    return [hidden.sub("***", line) for line in lines]


def prune(log: Path, launches: Sequence[str]) -> None:
    """Removes the files of all but the last of these launches; by their order, since a clock may go back."""
    kept = list(dict.fromkeys(reversed(launches)))[: KEPT_LAUNCHES + 1]
    for path in log.iterdir():
        if (found := _LAUNCH_FILE.fullmatch(path.name)) and found[1] not in kept:
            path.unlink(missing_ok=True)
