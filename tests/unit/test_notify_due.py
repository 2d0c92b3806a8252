"""What `stoker notify` sends when: tables of hours, numbers, days of failure, clocks and lost events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from stoker.cli.notify.due import (
    DAY_S,
    HOUR_S,
    Progress,
    caught_up,
    due,
    is_morning,
    is_within,
    judged_for,
)
from stoker.cli.notify.messages import MOST_LINES, Message, digest, name_of, of_event, of_left_out
from stoker.cli.notify.sending import answer
from stoker.config.schema import Route
from stoker.observe.verdict import Finding, Grade, Verdict
from stoker.store.record import utc_at

NOW = 1_795_000_000.0
BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 11, 28, 12, 0, tzinfo=BERLIN)
SHARD, TRAIN = "stage_shard", "train_supervisor"
LEVEL_OF = {"checkpoint_failed": "error", "source_quarantined": "warning", "run_finished": "info"}


def route(**keys: Any) -> Route:
    return Route(command=("true",), **keys)


def event(
    seq: int, word: str = "checkpoint_failed", ago_s: float = 60.0, daemon: str = TRAIN
) -> dict[str, Any]:
    return {"daemon": daemon, "seq": seq, "event": word, "time": utc_at(NOW - ago_s), "level": LEVEL_OF[word]}


def message(level: str, word: str = "w", number: int = 1) -> Message:
    return Message(level, "p", word, (word,), word, (f"{TRAIN}:{number}, t",))


def told(messages: Sequence[Message]) -> list[str]:
    return [one.word for one in messages]


@pytest.mark.parametrize(
    ("hours", "now", "is_quiet"),
    [
        ("22:00-07:00", "21:59", False),
        ("22:00-07:00", "22:00", True),
        ("22:00-07:00", "00:00", True),
        ("22:00-07:00", "06:59", True),
        ("22:00-07:00", "07:00", False),
        ("12:00-13:00", "12:30", True),
        ("12:00-13:00", "13:00", False),
        ("12:00-13:00", "00:00", False),
        ("12:00-12:00", "12:00", False),
        (None, "00:00", False),
    ],
)
def test_quiet_hours_may_pass_midnight(hours: str | None, now: str, is_quiet: bool) -> None:
    assert is_within(hours, datetime.fromisoformat(f"2026-11-28T{now}")) is is_quiet


@pytest.mark.parametrize(
    ("keys", "recent", "levels", "expected"),
    [
        ({}, [], ["warning"] * 6, ["0", "1", "2", "3", "4", "5"]),
        ({}, [], ["warning"] * 7, ["0", "1", "2", "3", "4", "digest"]),
        ({}, ["x"] * 5, ["warning"] * 2, ["digest"]),
        ({}, ["x"] * 6, ["warning"] * 2, []),
        ({}, ["x"] * 6, ["warning", "error", "error"], ["1"]),  # an error does not wait an hour,
        ({}, ["1", *["x"] * 5], ["warning", "error"], []),  # unless one of its kind was sent
        ({"most_an_hour": 1}, [], ["info", "error"], ["digest"]),
        ({"quiet": "11:00-13:00"}, [], ["warning", "error", "info"], ["1"]),
        ({"quiet": "13:00-11:00"}, [], ["warning", "error"], ["0", "1"]),
    ],
)
def test_beyond_the_hours_number_there_is_a_digest_and_in_quiet_hours_there_are_errors(
    keys: dict[str, Any], recent: list[str], levels: list[str], expected: list[str]
) -> None:
    progress = Progress(recent=[(NOW, word) for word in recent])
    waiting = [message(level, str(n), n) for n, level in enumerate(levels)]
    sent = due(route(**keys), progress, waiting, NOON)
    assert told(sent) == expected
    if "digest" in expected and levels[-1] == "error":
        assert sent[-1].level == "error"


def test_a_digest_has_a_line_for_the_first_and_counts_the_others_and_settles_all() -> None:
    many = [message("warning", "w", n) for n in range(MOST_LINES + 30)]
    one = digest([*many, replace(many[0], then={"day": "d"})])
    assert one.lines[0] == "train_supervisor:0, t: warning: w" and len(one.lines) == MOST_LINES + 1
    assert one.lines[-1] == "31 more, the last of them train_supervisor:0, t: warning: w"
    assert len(one.names) == MOST_LINES + 31 and one.then == {"day": "d"}
    assert one.title == f"warning: p: {MOST_LINES + 31} messages"
    assert len(f"{one.title}{one.text}") < 4096


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, ["checkpoint_failed", "source_quarantined"]),
        ({"level": "error"}, ["checkpoint_failed"]),
        ({"words": ("run_finished",)}, ["run_finished"]),
        ({"words": ("run_finished",), "level": "error"}, ["checkpoint_failed", "run_finished"]),
    ],
)
def test_a_route_gets_its_level_its_words_or_both(keys: dict[str, Any], words: list[str]) -> None:
    logs = {TRAIN: [event(n, word) for n, word in enumerate(LEVEL_OF, 1)]}
    progress, waiting = caught_up(route(**keys), Progress(), logs, NOW)
    assert {one["event"] for one in waiting} == set(words)
    seen, nothing = caught_up(route(**keys), replace(progress, ahead=[*map(name_of, waiting)]), logs, NOW)
    assert (nothing, seen.places[TRAIN][0], seen.left_out, seen.ahead) == ([], 3, 0, [])


def test_an_error_that_passes_others_is_not_sent_again_and_those_keep_their_place() -> None:
    logs = {TRAIN: [event(1, "source_quarantined"), event(2), event(3, "source_quarantined")]}
    progress, waiting = caught_up(route(), Progress(), logs, NOW)
    sent = progress.after(of_event(waiting[1], "/p.yaml", "p"), NOW)
    after, waiting = caught_up(route(), sent, logs, NOW)
    assert [one["seq"] for one in waiting] == [1, 3]
    assert (after.places, after.ahead) == ({}, [name_of(event(2))])
    settled = replace(after, places={TRAIN: (1, event(1)["time"])})
    assert caught_up(route(), settled, logs, NOW)[0].places[TRAIN][0] == 2


def test_events_of_all_daemons_come_in_the_order_of_their_times() -> None:
    logs = {TRAIN: [event(1, ago_s=50), event(2, ago_s=10)], SHARD: [event(7, ago_s=30, daemon=SHARD)]}
    waiting = caught_up(route(), Progress({SHARD: (6, "")}), logs, NOW)[1]
    assert [one["seq"] for one in waiting] == [1, 7, 2]


@pytest.mark.parametrize(
    ("failing_h", "ages_h", "left", "left_out"),
    [
        (None, [48, 30, 1], 3, 0),  # a machine that was off
        (23, [48, 30, 1], 3, 0),
        (24, [48, 30, 1], 1, 2),
        (-24, [48, 30, 1], 3, 0),  # the clock was set back
        (24, [1, 30], 2, 0),  # in order: what is behind a younger one waits with it
    ],
)
def test_on_a_route_that_fails_for_a_day_what_is_a_day_old_is_left_out(
    failing_h: float | None, ages_h: list[float], left: int, left_out: int
) -> None:
    since = None if failing_h is None else NOW - failing_h * HOUR_S
    logs = {TRAIN: [event(n, ago_s=age * HOUR_S) for n, age in enumerate(ages_h, 1)]}
    progress, waiting = caught_up(route(), Progress(failing_since=since), logs, NOW)
    assert (len(waiting), progress.left_out) == (left, left_out)
    said = of_left_out(2, "/p.yaml", "p")
    assert said.lines[0] == "2 events left out: not sent within a day, or gone from the logs"
    assert replace(progress, left_out=2).after(said, NOW).left_out == 0


@pytest.mark.parametrize(
    ("place", "log", "waiting", "left_out"),
    [
        ((3, utc_at(NOW - 60)), [2, 3, 4], [4], 0),
        ((3, utc_at(NOW - 90)), [7, 8], [7, 8], 3),  # rotated away
        ((3, utc_at(NOW - 60)), [3, 4, 6], [4, 6], 1),  # a damaged line
        ((9, utc_at(NOW - 90)), [8, 9], [8, 9], 0),  # numbers that came again after a power cut
        ((9, utc_at(NOW - 90)), [1], [1], 0),  # a log that began anew
        ((9, utc_at(NOW - 60)), [8, 9], [], 0),
    ],
)
def test_what_the_logs_have_lost_is_counted_and_numbers_that_come_again_are_new(
    place: tuple[int, str], log: list[int], waiting: list[int], left_out: int
) -> None:
    logs = {TRAIN: [event(seq) for seq in log]}
    progress, found = caught_up(route(), Progress({TRAIN: place}), logs, NOW)
    assert [one["seq"] for one in found] == waiting
    sent = replace(progress, ahead=[*map(name_of, found)])
    assert caught_up(route(), sent, logs, NOW)[0].left_out == left_out


def test_an_hour_and_a_clock_that_was_set_back_end_what_counts_against_the_number() -> None:
    recent = [(NOW - HOUR_S, "a"), (NOW - 1, "b"), (NOW + DAY_S, "c")]
    assert caught_up(route(), Progress(recent=recent), {}, NOW)[0].recent == [(NOW - 1, "b")]


@pytest.mark.parametrize(
    ("local", "last", "is_due"),
    [
        ("2026-11-28T07:29", "2026-11-27", False),
        ("2026-11-28T07:30", "2026-11-27", True),
        ("2026-11-28T23:59", "2026-11-27", True),  # a machine that was off
        ("2026-11-28T08:00", "2026-11-28", False),
        ("2026-11-27T08:00", "2026-11-28", False),  # set back a day: the line of that date was sent
        ("2026-11-28T08:00", "2027-11-28", True),  # sent while the clock was wrong by a year
        ("2026-11-28T08:00", "", True),
    ],
)
def test_the_morning_line_comes_once_a_date(local: str, last: str, is_due: bool) -> None:
    assert is_morning(Progress(day=last), "07:30", datetime.fromisoformat(local)) is is_due
    assert not is_morning(Progress(day=last), None, datetime.fromisoformat(local))


@pytest.mark.parametrize("begin", ["2026-03-28T12:00Z", "2026-10-24T12:00Z"])
def test_the_morning_line_of_half_past_two_comes_once_a_day_when_clocks_change(begin: str) -> None:
    """In spring there is no half past two, in autumn there are two."""
    progress, sent, start = Progress(day="2026-03-28" if "03" in begin else "2026-10-24"), [], begin
    at = datetime.fromisoformat(start).timestamp()
    for minute in range(2 * 24 * 60):
        local = datetime.fromtimestamp(at + 60 * minute, BERLIN)
        if is_morning(progress, "02:30", local):
            progress = replace(progress, day=f"{local:%Y-%m-%d}")
            sent.append(f"{local:%d %H:%M}")
    assert sent == (["29 03:00", "30 02:30"] if "03" in begin else ["25 02:30", "26 02:30"])


def judged(grade: Grade, *events: str) -> Verdict:
    hands = tuple(Finding(grade, f"about {word}", f"mend {word}", word) for word in events)
    return Verdict(grade, grade, hands)


@pytest.mark.parametrize(
    ("keys", "trouble", "verdict", "words", "expected"),
    [
        ({}, [], judged("well"), [], None),
        ({}, [], judged("broken", ""), [], ("error", "about ")),
        ({}, ["broken: mend "], judged("broken", ""), [], None),  # once
        ({}, ["broken: mend "], judged("well"), [], ("info", "nothing needs a hand any more")),
        ({}, [], judged("needs a hand", "source_quarantined"), [], ("warning", "about source_quarantined")),
        ({}, [], judged("needs a hand", "state_disk_full"), [], ("error", "about state_disk_full")),
        ({}, [], judged("needs a hand", "run_halted"), ["run_halted"], None),  # its event says it
        ({"level": "error"}, [], judged("needs a hand", "source_quarantined"), [], None),
    ],
)
def test_a_changed_verdict_is_told_once_where_no_event_tells_of_it(
    keys: dict[str, Any], trouble: list[str], verdict: Verdict, words: list[str], expected: Any
) -> None:
    least = str(route(**keys).least)
    first, told = judged_for(least, Progress(trouble=trouble), verdict, set(words), "p")
    if verdict.hands:
        assert told == [], "it may be a daemon that is just started again"
    progress = first if not told else first.after(told[0], NOW)
    if not told:
        progress, told = judged_for(least, first, verdict, set(words), "p")
    assert [(one.level, one.lines[0]) for one in told] == ([expected] if expected else [])
    known = progress.after(told[0], NOW) if told else progress
    assert judged_for(least, replace(known, recent=[]), verdict, set(), "p")[1] == []


def test_the_text_of_an_event_has_level_pipeline_remedy_and_id_and_nothing_that_a_terminal_obeys() -> None:
    about = {**event(17), "step": 5, "reason": "no room\x1b[2J\nhere"}
    one = of_event(about, "/etc/stoker/p.yaml", "p")
    assert one.title.startswith("error: p: ")
    lines = one.text.splitlines()
    assert len(lines) == 3 and "\x1b" not in one.text and lines[1].startswith("To do: ")
    assert lines[2] == f"train_supervisor:17, {about['time']}"
    assert Message("info", "p", "w", ("a\x1b[2J \udcff",), "w").text == "a\\x1b[2J \\udcff"
    unknown = of_event({**about, "event": "of_another_version", "level": "odd"}, "/p.yaml", "p")
    assert unknown.title == "info: p: of_another_version"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("Failed to send JSON POST notification: Not found, error=404.", "it answered HTTP 404"),
        ("HTTP Error 500: Internal Server Error", "it answered HTTP 500"),
        ("Read timed out. (read timeout=4.0)", "no answer in time"),
        ("<urlopen error [Errno 111] Connection refused>", "no answer: Connection refused"),
        (
            "SSLError(1, '[SSL: X] certificate verify failed: self-signed certificate (_ssl.c:1006)')",
            "its TLS certificate is not trusted: self-signed certificate",
        ),
        ("posting to host.example/hook/T0PSECRET", "it was not taken: posting to ********/hook/********"),
        ("", "it was not taken: no reason is given"),
    ],
)
def test_what_went_wrong_is_told_without_a_part_of_the_address(said: str, why: str) -> None:
    assert answer(said, "json://host.example/T0PSECRET/k") == why
