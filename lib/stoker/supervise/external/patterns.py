"""What a trainer's output tells of its progress: the lines and bars of known trainers, or an expression.

Each form is the one that the trainer's own source prints: nanoGPT's train.py, nanochat's base_train and
chat_sft, torchtitan's metrics processor, transformers' Trainer (4 and 5), Lightning's tqdm and rich bars.
What only looks like one is passed over: no step is better than a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MOST_CHARACTERS = 1000  # of a piece of output that is looked at: bounds the time of each expression
MOST_BARS = 32  # whose last counts are kept

_NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf)"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[@-~]")
_UP = "\x1b[A"  # ends a tqdm bar that stands below another one: an evaluation, a save
_RANK = re.compile(r"\[[a-z_]+\d+\]:\s*")  # torchrun's mark of a rank's line

_LINES = tuple(
    (kind, re.compile(form.replace("NUMBER", _NUMBER)))
    for kind, form in (
        ("nanoGPT", r"iter (?P<step>\d+): loss (?P<loss>NUMBER)"),
        ("nanoGPT", r"step (?P<step>\d+): train loss NUMBER, val loss (?P<val_loss>NUMBER)"),
        ("nanochat", r"step (?P<step>\d+)(?:/\d+)? \(NUMBER%\) \| loss: (?P<loss>NUMBER)"),
        ("nanochat", r"Step (?P<step>\d+) \| Validation bpb: NUMBER"),
        ("torchtitan", r"(?:.*? - )?step:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>NUMBER)"),
        ("torchtitan", r"(?:.*? - )?validate step:\s*(?P<step>\d+)\s+loss:\s*(?P<val_loss>NUMBER)"),
    )
)
_BESIDE = {
    name: re.compile(rf"\b{form}({_NUMBER})")
    for name, form in (
        ("grad_norm", r"grad[ _]norm:\s*"),
        ("lr", r"lr[: ]\s*"),
        ("tokens_per_s", r"(?:tok/sec|tps):\s*"),
    )
}
_LOGGED = {
    name: re.compile(rf"'{key}': '?({_NUMBER})'?[,}}]")
    for name, key in (
        *(("loss", "loss"), ("val_loss", "eval_loss"), ("grad_norm", "grad_norm")),
        *(("lr", "learning_rate"), ("epoch", "epoch")),
    )
}
_SHOWN = {
    name: re.compile(rf"(?<![\w/]){form}[=:]\s*({_NUMBER})")
    for name, form in (
        ("loss", r"(?:train[_/])?loss(?:_step)?"),
        *(("val_loss", r"val[_/]loss"), ("lr", "lr"), ("grad_norm", "grad_norm")),
    )
}
_TQDM = re.compile(
    r"(?P<name>[^|]{0,80}?)(?:^|: ?)(?: *\d{1,3}%)? ?\|[^|]*\|"
    r" (?P<count>\d+)/(?P<total>\d+|\?) \[(?P<beside>.*)"
)
_RICH = re.compile(
    r"(?P<name>.{1,80}?)\s+[━╸╺]{3}[━╸╺ ]*"
    r"\s(?P<count>\d+)/(?P<total>\d+|--)\s+[\d:-]+ • [\d:-]+\s(?P<beside>.*)"
)
_EPOCH = re.compile(r"Epoch (\d+)(?:/-?\d+)?")


@dataclass(frozen=True)
class Read:
    """What a piece of output tells; `values` by the names of the training log's rows."""

    kind: str
    step: int
    values: Mapping[str, float] = field(default_factory=dict)


class Reader:
    """Reads the output of one launch, piece by piece; `pattern` is "auto" or an operator's expression.

    The expression's group `step`, else its first, is the step; groups with the names of values are those.
    """

    def __init__(self, pattern: str = "auto") -> None:
        self.kind = ""  # of the last step that was read
        self.moved = 0  # how often a count of the output has changed: a sign of progress without a step
        self._expression = None if pattern == "auto" else re.compile(pattern)
        self._step = -1
        self._total: str | None = None  # of the bar that counts the steps of transformers' Trainer
        self._logged: Mapping[str, float] | None = None  # by its last piece; the next has the step
        self._counts: dict[str, str] = {}  # the last of each bar

    @property
    def is_expression(self) -> bool:
        """Whether an operator wrote it: nobody knows how long it takes."""
        return self._expression is not None

    def read(self, pieces: Iterable[str]) -> list[Read]:
        """Returns what these pieces tell of each step, in order; one below a step read before is none.

        A piece is what stands between two line feeds or carriage returns. What comes later of a step counts:
        Lightning shows a step's count before its values.
        """
        reads: dict[int, Read] = {}
        for piece in pieces:
            is_below, text = piece.rstrip().endswith(_UP), plain(piece)
            if not text:
                continue
            found = self._by_expression(text) if self._expression else self._by_form(text, is_below)
            if found is not None and found.step >= self._step:
                self.moved += found.step > self._step
                self._step, self.kind = found.step, found.kind
                earlier = reads[found.step].values if found.step in reads else {}
                reads[found.step] = replace(found, values={**earlier, **found.values})
        return list(reads.values())

    def _by_expression(self, text: str) -> Read | None:
        assert self._expression is not None
        found = self._expression.search(text)
        if found is None:
            return None
        groups = found.groupdict()
        step = _whole(groups.pop("step") if "step" in groups else found.group(1))
        return None if step is None else Read("expression", step, _numbers(groups))

    def _by_form(self, text: str, is_below: bool) -> Read | None:
        logged, self._logged = self._logged, None
        if bar := _TQDM.match(text) or _RICH.match(text):
            return self._by_bar(bar, is_below, logged)
        if text.startswith("{'") and text.endswith("}"):
            values = _numbers(_search(_LOGGED, text))
            if epoch := values.pop("epoch", None):
                self._note("epoch", str(epoch))
            self._logged = values or None
            return None
        text = _RANK.sub("", text, count=1)
        for kind, form in _LINES:
            if (found := form.match(text)) and (step := _whole(found["step"])) is not None:
                groups = {name: text for name, text in found.groupdict().items() if name != "step"}
                if "loss" in groups:  # beside a validation's loss stands the validation's speed
                    groups |= _search(_BESIDE, text[found.end() :])
                return Read(kind, step, _numbers(groups))
        return None

    def _by_bar(self, bar: re.Match[str], is_below: bool, logged: Mapping[str, float] | None) -> Read | None:
        name, count, total = bar["name"].strip(), _whole(bar["count"]), bar["total"]
        self._note(f"{name} {total}", bar["count"])
        if is_below or not count:
            return None
        if epoch := _EPOCH.fullmatch(name):
            before = int(epoch[1])
            if before and not total.isdigit():
                return None  # nobody tells how long the epochs before were
            step = before * int(total) + count if total.isdigit() else count
            return Read("Lightning", step, _numbers(_search(_SHOWN, bar["beside"])))
        if name:
            return None  # "Map", "Loading checkpoint shards", "Validation"
        if logged is not None and total.isdigit():
            self._total = total
        return Read("transformers", count, logged or {}) if total == self._total else None

    def _note(self, bar: str, count: str) -> None:
        if self._counts.get(bar) != count:
            self.moved += 1
            self._counts = {**self._counts, bar: count}
            if len(self._counts) > MOST_BARS:
                del self._counts[next(iter(self._counts))]


def plain(piece: str) -> str:
    """Returns the first `MOST_CHARACTERS` of a piece without control sequences and blanks at its ends."""
    return _CONTROL.sub("", piece[:MOST_CHARACTERS]).strip()


def words(read: Read, launch: str) -> bytes:
    """Returns a datagram as the trainer could have sent it, with the step and the values."""
    values = (f"{name.upper()}={value}" for name, value in read.values.items())
    return "\n".join((f"LAUNCH={launch}", "PHASE=train", f"STEP={read.step}", *values)).encode()


def _search(forms: Mapping[str, re.Pattern[str]], text: str) -> dict[str, str]:
    return {name: found[1] for name, form in forms.items() if (found := form.search(text))}


def _numbers(texts: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, text in texts.items() if text for value in _float(text)}


def _float(text: str) -> Iterator[float]:
    try:
        yield float(text.replace(",", ""))
    except ValueError:
        return


def _whole(text: str | None) -> int | None:
    digits = (text or "").replace(",", "").replace("_", "").strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else None
