"""Which checkpoint is promoted, by the lines of evaluations.jsonl: what is not proven promotes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stoker.config.schema_evaluation import Promote
from stoker.plan.timelines import Timeline, Timelines, ancestry
from stoker.store.log import ChainedLog
from stoker.supervise.evaluation.lines import newest, parse_line, read_lines
from stoker.supervise.evaluation.promotion import decide_promotion, in_force, regressed

BITS, FACTS = "heldout/bits_per_byte", "facts/passed"
POLICY = Promote.model_validate(
    {"primary": BITS, "guards": {FACTS: "0.1"}, "gate": "smoke", "floors": {BITS: "1.2", FACTS: "0.3"}}
)
OLD, NEW = "a" * 64, "b" * 64
Body = dict[str, Any]


def metric(value: float | None, verdict: str | None = None, is_high: bool = False) -> Body:
    shown = {"verdict": verdict, "difference": 0.1, "low": 0.0, "high": 0.2, "n": 9}
    return {"value": {"value": value, "n": 9, "stderr": 0.1, "higher_is_better": is_high}, "shown": shown}


def line(
    suite: str, metrics: Mapping[str, Body], of: str = NEW, against: str | None = OLD, **other: Any
) -> Body:
    """The body of a line as the supervisor writes it."""
    verdicts = {name: found["shown"] for name, found in metrics.items() if found["shown"]["verdict"]}
    body: Body = {"v": 1, "step": 20, "timeline": 0, "checkpoint_digest": of, "suite": suite, "gate": None}
    body |= {"suite_digest": f"{suite}-1", "samples": "x.gz", "samples_missing": 0, "invalid": None}
    body["metrics"] = {name: found["value"] for name, found in metrics.items()}
    body["against"] = {"digest": against, "verdicts": verdicts} if against and verdicts else None
    return body | other


BASE = [
    line("heldout", {BITS: metric(1.1)}, OLD, None),
    line("facts", {FACTS: metric(0.5, None, True)}, OLD, None),
]
GOOD = {
    "heldout": line("heldout", {BITS: metric(1.0, "better")}),
    "facts": line("facts", {FACTS: metric(0.5, "not_worse", True)}),
    "smoke": line("smoke", {"smoke/passed": metric(1.0)}, gate={"passed": 8, "of": 8, "failed": []}),
}
SMOKE = GOOD["smoke"]


def decide(
    changed: Mapping[str, Body | None], base: list[Body], promoted: str | None = OLD
) -> tuple[str, str]:
    """The verdict on the good lines with some of them changed or left out."""
    mine = [one for one in {**GOOD, **changed}.values() if one is not None]
    found = decide_promotion(POLICY, [parse_line(one) for one in (*base, *mine)], NEW, promoted)
    return found.verdict, "; ".join(found.why)


@pytest.mark.parametrize(
    ("changed", "verdict", "why"),
    [
        ({}, "promoted", ""),
        ({"facts": line("facts", {FACTS: metric(0.5, "better", True)})}, "promoted", ""),
        (
            {"facts": line("facts", {FACTS: metric(0.5, "doubt", True)})},
            "not_promoted",
            "facts/passed is doubt",
        ),
        (
            {"facts": line("facts", {FACTS: metric(0.5, "worse", True)})},
            "not_promoted",
            "better or not_worse",
        ),
        ({"heldout": line("heldout", {BITS: metric(1.0, "not_worse")})}, "not_promoted", "must be better"),
        (
            {"heldout": line("heldout", {BITS: metric(1.3, "better")})},
            "not_promoted",
            "1.3, worse than its floor 1.2",
        ),
        ({"heldout": line("heldout", {BITS: metric(None, "better")})}, "not_promoted", "is None, worse"),
        ({"facts": line("facts", {FACTS: metric(0.2, "better", True)})}, "not_promoted", "0.2, worse than"),
        ({"smoke": SMOKE | {"gate": {"passed": 7, "of": 8}}}, "not_promoted", "7 of 8 cases of the gate"),
        ({"smoke": SMOKE | {"gate": {"passed": 0, "of": 0}}}, "not_promoted", "0 of 0 cases"),
        ({"smoke": SMOKE | {"gate": None}}, "not_promoted", "0 of 0 cases"),
        ({"facts": GOOD["facts"] | {"samples_missing": 1}}, "not_promoted", "facts lacks 1 samples"),
        ({"other": line("other", {}, samples_missing=1)}, "promoted", ""),
        ({"facts": GOOD["facts"] | {"invalid": "NaN"}}, "not_promoted", "facts is invalid: NaN"),
        ({"facts": GOOD["facts"] | {"suite_digest": "facts-2"}}, "not_promoted", "lacks comparable"),
        (
            {"facts": line("facts", {FACTS: metric(0.5, "better", True)}, against="c")},
            "not_promoted",
            "lacks comp",
        ),
        ({"facts": line("facts", {FACTS: metric(0.5, None, True)})}, "not_promoted", "lacks comparable"),
        ({"facts": None}, "none", "not measured yet: facts/passed"),
        ({"smoke": None}, "none", "not measured yet: smoke"),
        (
            {"smoke": None, "facts": line("facts", {FACTS: metric(0.5, "doubt", True)})},
            "not_promoted",
            "doubt",
        ),
    ],
)
def test_a_successor_is_better_not_worse_whole_and_comparable(
    changed: Mapping[str, Body | None], verdict: str, why: str
) -> None:
    found, said = decide(changed, BASE)
    assert found == verdict
    assert why in said
    assert bool(said) == (found != "promoted")


@pytest.mark.parametrize(
    "base",
    [[], BASE[:1], [BASE[0], BASE[1] | {"samples_missing": 2}], [BASE[0], BASE[1] | {"invalid": "NaN"}]],
)
def test_a_baseline_that_is_lost_or_not_whole_promotes_nothing(base: list[Body]) -> None:
    assert decide({}, base)[0] == "not_promoted"


def test_the_first_needs_floors_and_gate_alone_and_the_promoted_one_nothing() -> None:
    alone = {
        "heldout": line("heldout", {BITS: metric(1.0)}),
        "facts": line("facts", {FACTS: metric(0.5, None, True)}),
    }
    assert decide(alone, [], None)[0] == "promoted"
    assert decide({**alone, "heldout": line("heldout", {BITS: metric(1.3)})}, [], None)[0] == "not_promoted"
    assert decide({**alone, "heldout": None}, [], None)[0] == "none"
    assert decide({}, BASE, NEW)[0] == "none"
    assert decide_promotion(None, [], NEW, None).verdict == "none"


def test_what_is_worse_than_the_promoted_one_has_regressed() -> None:
    worse = parse_line(line("facts", {FACTS: metric(0.1, "worse"), "facts/other": metric(0.1, "worse")}))
    primary = parse_line(line("heldout", {BITS: metric(2.0, "worse")}))
    nan = parse_line(line("heldout", {BITS: metric(2.0, "worse")}, invalid="NaN"))
    assert regressed(POLICY, [worse, primary, nan, parse_line(GOOD["facts"])], OLD) == [FACTS, BITS]
    assert not regressed(POLICY, [worse], NEW)
    assert not regressed(None, [worse], OLD)


def test_lines_past_the_fork_of_a_rollback_count_no_more(tmp_path: Path) -> None:
    log, made = tmp_path / "evaluations.jsonl", GOOD["heldout"]
    with closing(ChainedLog(log)) as writer:
        for step, timeline in ((10, 0), (20, 0), (20, 1)):
            writer.append(made | {"step": step, "timeline": timeline, "suite_digest": f"{step}-{timeline}"})
        writer.append({"v": 1, "step": 30})
    history = ancestry(Timelines((Timeline(1, 0, 15, (), "asked"),)))
    lines, damage = read_lines(log, history)
    assert [one.suite_digest for one in lines] == ["10-0", "20-1"]
    assert "entry 3 is no evaluation" in damage[0]
    assert newest(lines, NEW)["heldout"].suite_digest == "20-1"
    assert not newest(lines, OLD)
    record = {"v": 1, "step": 20, "timeline": 0, "checkpoint": "step-000000020", "digest": OLD}
    assert in_force(record, history) is None
    assert in_force(record | {"step": 15}, history) == OLD
    assert in_force(record | {"timeline": 1}, history) == OLD
    assert in_force(None, history) is None
    assert in_force({"v": 1, "digest": OLD}, history) is None, "of another program"
