"""What `stoker units` writes, in a real systemd: the token, open directories, a changed file."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.skipping import unless_missing
from support.waiting import wait_until
from systemd.box import Box, missing

REPO = Path(__file__).resolve().parents[2]
STOKER = "/opt/stoker/current/bin/stoker"
FILE = "/etc/stoker/hub.yaml"
UNIT = "stoker-download-watchdog@hub.service"
PIPELINE = """
name: hub
hot: /mnt/fast/hub
dataset: {name: words, source: {kind: hub, repo: a/b, endpoint: "http://127.0.0.1:9"}}
stage: {free_floor: 0}
plan: {segment_tokens: 1000}
train: {steps: 10, model: tiny}
metrics: {ports: {download: 0, shard: 0, train: 0}}
"""

OWN = """
name: own
train: {command: [sh, train.sh], external: {directory: /code/own, checkpoints: out/*.pt}}
metrics: {ports: {download: 0, shard: 0, train: 0}}
"""
TRAINER = """
mkdir -p out "$HOME/.cache" && echo cached > "$HOME/.cache/mine"
{ echo elsewhere > /code/other; } 2> said
echo sealed > out/step-1.pt && echo 'step 1 loss 2.0'
sleep 600 & trap 'kill $!; exit 0' TERM; wait
"""

pytestmark = [pytest.mark.systemd, unless_missing("drop-ins in a real systemd", missing())]


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box("drop-ins", [(REPO, str(REPO))]) as box:
        for path in (Path(sys.executable).resolve(), Path(sysconfig.get_paths()["stdlib"]) / "os.py", REPO):
            for folder in path.parents:
                box.run("chmod", "a+x", str(folder))
        box.run("sh", "-c", f"mkdir /opt/stoker && ln -s {REPO}/.venv /opt/stoker/current")
        box.run("sh", "-c", f"cp -r {REPO}/deploy/systemd/stoker* /etc/systemd/system/")
        box.run("systemd-sysusers", "/etc/systemd/system/stoker.sysusers")
        box.run("sh", "-c", "mkdir /mnt/fast && mount -t tmpfs fast /mnt/fast")
        box.run("install", "-d", "-o", "stoker", "/mnt/fast/hub")
        box.write(FILE, PIPELINE)
        yield box
        print(box.journal("stoker-*"))


def test_what_the_units_take_from_the_file_holds_in_systemd(box: Box) -> None:
    said = box.run(STOKER, "units", FILE, "--write")
    assert (said.stdout.count("wrote /etc/systemd/system/stoker-"), said.stderr) == (6, "")
    checked = box.run("systemd-analyze", "verify", UNIT, "stoker-train-supervisor@hub.service")
    assert checked.stderr == ""
    box.run("systemctl", "daemon-reload")

    box.run("systemctl", "start", UNIT)  # without a token's file, which alone would end in 243
    assert credential(box) == "-"
    assert box.show("stoker-train-supervisor@hub.service", "TimeoutStopUSec") == "6min"
    assert sorted(box.show(UNIT, "RequiresMountsFor").split())[:2] == ["/mnt/fast/hub", "/run/stoker/hub"]

    box.run("sh", "-c", "umount /mnt/fast; mount -t tmpfs fast /mnt/fast; install -d -o stoker /mnt/fast/hub")
    main = box.show(UNIT, "MainPID")
    inside = [
        "nsenter",
        "-t",
        main,
        "-m",
        "-r",
        "setpriv",
        "--reuid=stoker",
        "--regid=stoker",
        "--clear-groups",
    ]
    box.run(*inside, "touch", "/mnt/fast/hub/new")
    assert box.path("/mnt/fast/hub/new").exists(), "the disk that is mounted anew is the one that is written"

    box.write(FILE, PIPELINE + "warm: /mnt/slow\n")
    box.write("/etc/stoker/hub-token", "secret-word\n")
    box.path("/etc/stoker/hub-token").chmod(0o600)
    box.run("systemctl", "reload", UNIT)
    (told,) = [one for one in box.journal_json(UNIT) if one.get("STOKER_EVENT") == "unit_differs"]
    assert "+ReadWritePaths=-/var/lib/stoker/hub -/mnt/fast -/mnt/slow" in told["STOKER_LINES"]
    box.run(STOKER, "units", FILE, "--write")
    box.run("systemctl", "daemon-reload")
    box.run("systemctl", "restart", UNIT)
    assert credential(box) == "secret-word\n"
    told = [one for one in box.journal_json(UNIT) if one.get("STOKER_EVENT") == "unit_differs"]
    assert len(told) == 1
    assert "secret-word" not in box.journal(UNIT, "-o", "export")


def test_a_trainer_of_ones_own_writes_where_it_runs_and_a_home_and_nowhere_else(box: Box) -> None:
    box.write("/etc/stoker/own.yaml", OWN)
    box.write("/code/own/train.sh", TRAINER)
    box.run("chown", "-R", "stoker", "/code")
    said = box.run(STOKER, "units", "/etc/stoker/own.yaml", "--write").stderr
    assert "with an external trainer: stoker-train-supervisor@own.service has an exposure of 1." in said
    box.run("systemctl", "daemon-reload")

    box.run("systemctl", "start", "stoker-train-supervisor@own.service")

    state = box.path("/var/lib/stoker/own")
    wait_until(lambda: list(state.glob("runs/main/checkpoints/step-*")), what="its sealed checkpoint")
    assert (state / ".cache/mine").read_text() == "cached\n"
    assert "Read-only file system" in box.path("/code/own/said").read_text()
    box.run("systemctl", "stop", "stoker-train-supervisor@own.service")
    assert box.show("stoker-train-supervisor@own.service", "Result") == "success"


def credential(box: Box) -> str:
    """What the unit sees as its token."""
    return box.path(f"/run/credentials/{UNIT}/hub-token").read_text()
