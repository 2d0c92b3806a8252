"""The units of a user's own systemd are the machine's, but for where things lie and whose they are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
KINDS = (".service", ".timer", ".target", ".slice")
PLACES = {
    "/opt/stoker/": "%h/.local/share/stoker/",
    "/etc/stoker/": "%E/stoker/",
    "WantedBy=multi-user.target": "WantedBy=default.target",
    "# DeviceAllow=char-nvidia* counts for drivers that are loaded when the unit starts; this loads them.\n"
    "After=nvidia-persistenced.service\n": "",
    # A user's systemd has neither; state lies where the pipeline's file says.
    "After=local-fs.target\n": "",
    "StateDirectory=stoker/%i\nStateDirectoryMode=0750\n": "",
    "StateDirectory=stoker/serve\nStateDirectoryMode=0750\n": "",
    "/var/lib/stoker/": "%S/stoker/",
    "# To read what the failed unit said last.\nSupplementaryGroups=systemd-journal\n": "",
}
SANDBOX = re.compile(r"^# What it may not do.*?(?=\n\[Install\]|\Z)", re.MULTILINE | re.DOTALL)
OF_USERS = """\
# What it may not do. A user's systemd has no right to more of a sandbox: the units of the machine have one.
UMask=0027
Slice=stoker.slice
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
SystemCallArchitectures=native
"""


def of_user(unit: str) -> str:
    """Returns what a unit of the machine is as a user's."""
    unit = SANDBOX.sub(OF_USERS, unit)
    for here, there in sorted(PLACES.items(), key=lambda pair: -len(pair[0])):
        unit = unit.replace(here, there)
    return re.sub(r"^After=local-fs.target ", "After=", unit, flags=re.MULTILINE)


def units(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("stoker*") if path.suffix in KINDS)


def test_each_unit_has_its_twin_for_users_and_differs_only_in_place_and_owner() -> None:
    assert [path.name for path in units(UNITS)] == [path.name for path in units(UNITS / "user")]
    for path in units(UNITS):
        assert (UNITS / "user" / path.name).read_text() == of_user(path.read_text()), path.name


def test_every_service_has_the_same_sandbox() -> None:
    found = [SANDBOX.search(path.read_text()) for path in sorted(UNITS.glob("stoker-*.service"))]
    assert len(found) == 8
    assert len({tuple(re.findall(r"^\w+=.*", one[0], re.MULTILINE)) for one in found if one is not None}) == 1
    assert None not in found


def test_the_units_of_the_three_daemons_differ_in_what_is_their_own_alone() -> None:
    own = re.compile(r"(Description|After|Exec\w+|Timeout\w+|CPUWeight|IOWeight)=")
    paths = [
        UNITS / f"stoker-{name}@.service" for name in ("download-watchdog", "stage-shard", "train-supervisor")
    ]
    settings = [re.findall(r"^\w+=.*", path.read_text(), re.MULTILINE) for path in paths]
    assert len({tuple(line for line in lines if not own.match(line)) for lines in settings}) == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_a_users_systemd_knows_every_line(tmp_path: Path) -> None:
    for path in units(UNITS / "user"):
        text = path.read_text().replace("%h/.local/share/stoker", "/usr")
        (tmp_path / path.name).write_text(re.sub(r"^(Exec\w+=)\S+", r"\1/bin/true", text, flags=re.MULTILINE))
    files = [str(path) for path in units(tmp_path)]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", *files],
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == "", done.stderr
