"""When a daemon is said to be in a crash loop."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from stoker.kit.crash_loop import unclean_ends

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def events(text: str) -> list[dict[str, str]]:
    """Each word is an event (started, ended in order, failed, told, other) and its minutes ago."""
    names = {"s": "daemon_started", "e": "daemon_stopped", "f": "daemon_failed", "t": "daemon_crash_loop"}
    return [
        {
            "event": names.get(word[0], "source_pinned"),
            "time": (NOW - timedelta(minutes=float(word[1:]))).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "message": f"failed {word[1:]} minutes ago",
        }
        for word in text.split()
    ]


@pytest.mark.parametrize(
    ("before", "ends"),
    [
        ("", None),
        ("s9 s6", None),  # two ends: one found 6 minutes ago, one now
        ("s9 o8 s6 o5 s3", 3),
        ("s9 f8 s6 f5 s3 f2", 3),
        ("s9 s6 s3 e2", None),  # the last end was in order
        ("s9 s6 e5 s3", None),
        ("s9 e8 s7 s5 s3", 3),
        ("s40 s15.5 s3", None),  # too long ago
        ("s40 s14 s3", 3),  # found within the time, however long it ran before
        ("s9 s6 s3 t3 s2", None),  # told
        ("s30 s29 s28 t14 s13 s12", None),
        ("s30 s29 s28 t20 s14 s13", 3),  # told long ago, and it goes on
        ("s12 s11 s10 s9 s8", 5),
    ],
)
def test_three_unclean_ends_within_15_minutes_are_a_crash_loop_that_is_told_once(
    before: str, ends: int | None
) -> None:
    found = unclean_ends(events(before), NOW)
    assert (found.ends if found.is_loop else None) == ends


@pytest.mark.parametrize(
    ("before", "minutes_ago"),
    [
        ("", None),
        ("s9 e8", None),
        ("s9 e8 s7 e6", None),
        ("s9", 0),
        ("s9 s7 e6", 7),
        ("s9 f8 s7 s5 e4 s3 e2", 5),
    ],
)
def test_the_last_start_after_an_end_that_was_not_in_order_is_known_after_orderly_ones(
    before: str, minutes_ago: float | None
) -> None:
    known = unclean_ends(events(before), NOW).latest
    assert known == (None if minutes_ago is None else NOW - timedelta(minutes=minutes_ago))


def test_it_names_the_last_end() -> None:
    failed = str(unclean_ends(events("s9 s6 s3 f2"), NOW))
    killed = str(unclean_ends(events("s9 f8 s6 f5 s3"), NOW))
    assert failed.endswith("the last time failed 2 minutes ago")
    assert "without a message" in killed
