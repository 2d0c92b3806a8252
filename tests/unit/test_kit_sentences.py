"""Events as a person reads them."""

from __future__ import annotations

from string import Formatter
from typing import Any

import pytest

from stoker.kit.event_types import event_type, register
from stoker.kit.terminal import sentence

SUM = "5b137774cb019dc436639542910352c843df4896ec997726cf3817ef1f020091"


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (
            {"event": "file_verified", "path": "a.parquet", "size": 943_000, "sha256": SUM, "cached": False},
            "a.parquet hashed, 920.9 KiB",
        ),
        ({"event": "file_verified", "path": "a", "size": 1, "how": "fetched"}, "a verified, 1 B"),
        (
            {"event": "checkpoint_sealed", "path": "out/c-9", "step": 9, "bytes": 1},
            "checkpoint of step 9 is sealed: out/c-9",
        ),
        (
            {"event": "source_proven", "path": "a.parquet", "tokens": 519_018, "documents": 1, "dropped": 0},
            "a.parquet built: 519,018 tokens of 1 document",
        ),
        (
            {
                "event": "source_quarantined",
                "path": "a",
                "reason": "page_corrupt",
                "row_group": 0,
                "column": None,
            },
            "a quarantined: page corrupt, row group 0",
        ),
        (
            {"event": "run_finished", "step": 1200, "message": "steps"},
            "the run is finished at step 1,200: all its steps are done",
        ),
        (
            {
                "event": "run_progress",
                "step": 5,
                "steps": 9,
                "loss": 3.2,
                "val_loss": 3.3,
                "val_step": 4,
                "tokens_per_s": 123_456,
                "eta_s": 7500,
            },
            "step 5 of 9, loss 3.2000, held out 3.3000 at step 4, 123.5 K tokens/s, 2 h 5 min left",
        ),
        (  # a field that the sentence names is missing
            {"event": "trainer_exited", "exit_class": "killed", "pid": 123_456},
            "a launch ended: exit class killed, pid 123456. Another launch resumes from the newest proven "
            "checkpoint, unless the run is over.",
        ),
        ({"event": "staging_paused", "reason": "gone"}, "the source cannot be read: gone"),  # a former word
        (  # no sentence of its own
            {
                "event": "odd_thing",
                "path": "a",
                "message": "look",
                "reason": f"is {SUM}",
                "retry_in_s": 90,
                "n": 1e4,
            },
            "odd thing: a: is 5b137774cb01; look, retry in 1 min 30 s, n 10,000.0000",
        ),
        (
            {"event": "odd_thing", "names": ["a", "b"], "once": True, "seq": 3},
            "odd thing: names a, b, once yes",
        ),
        ({"event": "file_verified", "path": "a\nb\x1b[31m", "size": 1}, "a\\nb\\x1b[31m hashed, 1 B"),
        ({"event": "file_verified", "path": "{size}[x]", "size": 1}, "{size}[x] hashed, 1 B"),
    ],
)
def test_an_event_is_a_sentence(event: dict[str, Any], told: str) -> None:
    assert sentence({"time": "2026-11-20T12:00:00Z", "level": "info", **event}) == told


@pytest.mark.parametrize("word", [row.word for row in register().values() if row.line])
def test_every_line_can_be_filled(word: str) -> None:
    known = event_type(word)
    assert known is not None
    line = known.line_unproven or known.line
    names = [name for _, name, _, _ in Formatter().parse(line) if name]
    told = sentence({"event": word, **dict.fromkeys(names, "xyzzy")})
    assert told.count("xyzzy") == len(names) and not set("{}[]") & set(told)
