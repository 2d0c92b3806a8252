"""The step in the name of a trainer's checkpoint, and the names that Stoker gives beside one.

Stoker's own, which no prefix and no glob of a trainer matches and which is never taken for a checkpoint:
    .stoker-before-<id>-<name>   what lay at a path before the path was restored; a long <name> is cut
    .tmp-stoker-<run id>         a restoration at work
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

MOST_NAME_BYTES = 255  # as Linux allows
_DIGEST_HEX = 8
_STEP = re.compile(r"step[=_-]?(\d{1,18})(?!\d)", re.IGNORECASE)
_WORD = re.compile(r"(?<![A-Za-z])(?:iteration|iter|checkpoint|ckpt)[=_.-]?(\d{1,18})(?!\d)", re.IGNORECASE)
# "bf16" and "7b" say what the weights are, "epoch3" and "0.35" are no steps.
_NUMBER = re.compile(r"(?<![\dA-Za-z])(\d{1,18})(?![\dA-Za-z])")
_NO_STEP = re.compile(r"\d+\.\d+|epoch[=_-]?\d+", re.IGNORECASE)
_ID = r"\d{8}T\d{6}Z-[0-9a-f]{8}"
_ASIDE = re.compile(rf"\.stoker-before-({_ID})-.+|.+\.before-({_ID})", re.DOTALL)  # the second: until 0.1


def steps_in(name: str) -> tuple[int, ...]:
    """Returns the numbers in a name that may be its step, the likeliest first.

    The number after "step", else those after "iter", "checkpoint" and "ckpt", the last one first, else the
    last one that stands alone. A number beside a letter, after "epoch" or with a point is none.
    """
    if found := _STEP.findall(name):
        return (int(found[-1]),)
    plain = _NO_STEP.sub(" ", name)
    numbers = [*_NUMBER.findall(plain), *_WORD.findall(plain)]
    return tuple(dict.fromkeys(int(number) for number in reversed(numbers)))


def step_in(name: str) -> int | None:
    """Returns the likeliest step in a name."""
    return next(iter(steps_in(name)), None)


def says_step(name: str) -> bool:
    """Returns whether the name itself calls its number a step."""
    return _STEP.search(name) is not None


def aside_of(path: Path, at: str) -> Path:
    """Returns the path beside `path` to which it is put aside; `at` is a new id."""
    head, name = f".stoker-before-{at}-", os.fsencode(path.name)
    if len(head) + len(name) > MOST_NAME_BYTES:  # two long names may begin alike
        cut = MOST_NAME_BYTES - len(head) - _DIGEST_HEX - 1
        name = name[:cut] + b"-" + hashlib.sha256(name).hexdigest()[:_DIGEST_HEX].encode()
    return path.with_name(head + os.fsdecode(name))


def put_aside_at(name: str) -> str | None:
    """Returns the id of what was put aside under this name; None for any other name."""
    found = _ASIDE.fullmatch(name)
    return None if found is None else found[1] or found[2]
