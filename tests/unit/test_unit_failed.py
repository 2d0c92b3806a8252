"""What is told of a unit that failed."""

from __future__ import annotations

import pytest

from stokerd.common.unit_failed import last_error, remedy

FILE = "/etc/stoker/fineweb.yaml"
SAID = {"_TRANSPORT": "stdout", "PRIORITY": "6"}
STATE_FULL = {"STOKER_EVENT": "state_disk_full", "PRIORITY": "3", "MESSAGE": "state_disk_full free=0"}


def test_the_last_error_event_goes_before_lines_and_lines_come_in_their_order() -> None:
    lines = [{**SAID, "MESSAGE": " state: unknown key"}, {**SAID, "MESSAGE": "stoker-stage-shard: line 3:"}]
    warning = {"STOKER_EVENT": "x", "PRIORITY": "4", "MESSAGE": "x"}
    assert last_error([*lines, warning, STATE_FULL]) == (STATE_FULL, "state_disk_full free=0")
    assert last_error([*lines, warning]) == ({}, "stoker-stage-shard: line 3: state: unknown key")
    assert last_error([]) == ({}, "")


@pytest.mark.parametrize(
    ("unit", "exit_code", "event", "does"),
    [
        ("stage-shard", "78", {}, f"`stoker config check {FILE}`"),
        ("stage-shard", "78", STATE_FULL, f"`stoker config check {FILE}`"),
        ("stage-shard", "74", STATE_FULL, "Free space on the state disk"),
        ("stage-shard", "1", {}, "`journalctl -xu stoker-stage-shard@fineweb.service`"),
        ("audit", "1", {}, f"`stoker audit {FILE}`"),
        ("scrub", "1", {}, f"`stoker audit {FILE} --deep`"),
        ("scrub", "74", {}, "then `systemctl start stoker-scrub@fineweb.service`"),
    ],
)
def test_the_remedy_follows_the_exit_code_then_the_last_error(
    unit: str, exit_code: str, event: dict[str, str], does: str
) -> None:
    assert does in remedy(f"stoker-{unit}@fineweb.service", FILE, exit_code, event)


def test_a_users_unit_is_started_by_the_users_systemd() -> None:
    does = remedy("stoker-stage-shard@fineweb.service", "/home/al/.config/stoker/fineweb.yaml", "78", {})
    assert does.endswith("then `systemctl --user start stoker-stage-shard@fineweb.service`")
