"""Which checkpoints are due for which suites, and where a launch ends for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.config.schema_evaluation import SuiteSchedule
from stoker.supervise.evaluation.due import Course, due, next_stop


def entry(name: str = "a", **when: Any) -> SuiteSchedule:
    return SuiteSchedule(suite=Path(f"/suites/{name}.yaml"), **when)


case, THIRD = pytest.param, entry(every_checkpoints=3)
A, B, STEPS = entry(every_steps=100), entry("b", every_steps=100), range(40, 400, 40)


@pytest.mark.parametrize(
    ("entries", "course", "done", "expected"),
    [
        case([A], Course([], []), {}, [], id="nothing is proven"),
        case([A], Course([80], [80]), {}, [], id="not so far yet"),
        case([A], Course([80, 120, 160], [80, 120, 160]), {}, [("a", 120)], id="first past the mark"),
        case([A], Course(STEPS, STEPS), {}, [("a", 320)], id="the last mark, where many were missed"),
        case([A], Course([80, 120, 160], [160]), {}, [("a", 160)], id="that one was pruned"),
        case([A], Course([120, 160], [120, 160]), {"a": {120}}, [], id="a restart does not repeat it"),
        case([A], Course([120, 200], [120, 200]), {"a": {120}}, [("a", 200)], id="at the mark itself"),
        case(
            [A, B], Course(STEPS, STEPS), {"a": {120}}, [("b", 120), ("a", 320), ("b", 320)],
            id="first the checkpoint that the other suite has: one has both",
        ),
        case([THIRD], Course([1, 2], [1, 2]), {}, [], id="two of three"),
        case([THIRD], Course([1, 2, 3], [2, 3]), {}, [("a", 3)], id="the third"),
        case([THIRD], Course([1, 2, 3, 4], [3, 4]), {}, [("a", 4)], id="the newest, if it is behind"),
        case([THIRD], Course([1, 2, 3, 4], [4]), {}, [("a", 4)], id="it is gone"),
        case([THIRD], Course([3, 4, 5], [4, 5]), {"a": {3}}, [], id="counted anew"),
        case(
            [entry(at=("milestones",))], Course([1, 5, 9], [5, 9], {5, 9}), {"a": {9}}, [("a", 5)],
            id="milestones",
        ),
        case([entry(at=("finish",))], Course([5], [5]), {}, [], id="the run goes on"),
        case([entry(at=("finish",))], Course([5, 9], [5, 9], (), True), {}, [("a", 9)], id="it ends"),
        case(
            [entry(at=("finish",)), B], Course([100, 120], [100, 120], (), True), {"b": {100}}, [("a", 120)],
            id="the end itself",
        ),
        case([A, entry("b")], Course([120], [120]), {}, [("a", 120)], id="without a time of its own"),
        case([A, entry("b")], Course([120], [120]), {"a": {120}}, [("b", 120)], id="it follows"),
    ],
)  # fmt: skip
def test_due(
    entries: list[SuiteSchedule], course: Course, done: dict[str, set[int]], expected: list[tuple[str, int]]
) -> None:
    assert list(dict.fromkeys((one.name, step) for one, step in due(entries, course, done))) == expected


def test_a_launch_ends_where_the_next_evaluation_between_launches_is_due() -> None:
    between = entry(every_steps=100, where="between", at=("milestones",))
    stops = [next_stop([A, between], step, (130,)) for step in (0, 100, 130, 199, 200)]
    assert stops == [100, 130, 200, 200, 300]
    assert next_stop([A], 0, (130,)) is None
