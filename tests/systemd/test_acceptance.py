"""Two pipelines on a machine where a stranger installed Stoker, through what befalls machines.

The first one trains (without torch: see support.training), the second one waits for a hub. The tests follow
each other on one machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.boxed import DROP_IN, OF_TESTS, head, training
from support.installing import REPO, built_wheel, next_wheel, offline_wheel, packages_apart, quick_python
from support.skipping import unless_missing
from support.text import documents, write_parquet
from support.waiting import LONG_S, wait_until
from systemd.box import Box, missing, missing_hybrid

TRAINS = training("one", "every: null, every_steps: 400")
WAITS = (
    head("two")
    + """
dataset: {name: words, source: {kind: hub, repo: a/b, endpoint: "http://127.0.0.1:8099"}}
train: {steps: 10, model: tiny}
"""
)
TOKEN = "hf_a-secret-of-the-hub"
HUB = """
import http.server
class Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("yes" if self.headers["Authorization"] == "Bearer TOKEN" else "no", flush=True)
        self.send_error(503)
http.server.HTTPServer(("127.0.0.1", 8099), Hub).serve_forever()
"""
DAEMONS = ("download-watchdog", "stage-shard", "train-supervisor")
ONE = [f"stoker-{daemon}@one.service" for daemon in DAEMONS]
TWO, *MASKED = [unit.replace("one", "two") for unit in ONE]  # masked: they would only wait
SUPERVISOR = ONE[2]
FILE = "/etc/stoker/one.yaml"
STATE = "/var/lib/stoker/one"
BASE, PYTHON, PACKAGES = Path(sys.base_prefix), "/opt/python", "/srv/tools/packages"
# In a box is no logind, which would make the directory for a user's systemd, as at boot for one who lingers.
RUNTIME_DIR = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=install -d -m 700 -o %i /run/user/%i\n"
OF_LOGIN = "[Service]\nPAMName=\nEnvironment=XDG_RUNTIME_DIR=/run/user/%i\n"
PERSON = ["runuser", "-u", "ann", "--", "env", "HOME=/home/ann", "XDG_RUNTIME_DIR=/run/user/4242"]
BACK_S = 15.0  # from the end of a trainer to steps of the next

pytestmark = [pytest.mark.systemd, unless_missing("an installation in a real systemd", missing())]


class Machine:
    """The box with Stoker in it."""

    def __init__(self, box: Box, wheels: list[str]) -> None:
        self.box, self.wheels = box, wheels

    def install(self, *words: str, by: Sequence[str] = ("env",), python: str = "/srv/tools/python") -> str:
        """Runs the installer, which takes its code from the wheel."""
        command = [*by, f"PYTHONPATH={words[0]}", f"{PYTHON}/bin/python3", "-m", "stoker.install"]
        return self.box.run(*command, *words, "--python", python).stdout

    def stoker(self, *words: str, user: str = "stoker", code: int = 0) -> str:
        """Runs a command, as the daemons' account; returns what it printed."""
        command = ["runuser", "-u", user, "--", "/usr/local/bin/stoker"]
        done = self.box.run(*command, *words, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def pid(self, unit: str) -> int:
        return int(self.box.show(unit, "MainPID"))

    def trainer(self, runtime: str = "/run/stoker/one") -> int:
        """Waits for a trainer that lives; returns its pid."""
        status = self.box.path(f"{runtime}/status/train_supervisor.json")

        def told() -> int:
            pid: int = (json.loads(status.read_text()) if status.exists() else {}).get("trainer_pid") or 0
            return pid if pid and self.box.path(f"/proc/{pid}").exists() else 0

        return wait_until(told, what="a trainer")

    def rows(self, state: str = STATE) -> list[int]:
        """The steps of the run, in the order of their log."""
        log = self.box.path(f"{state}/runs/main/log/metrics.jsonl")
        lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
        return [row["step"] for row in map(json.loads, lines) if "loss" in row]

    def goes_on(self, reached: int, timeout_s: float = LONG_S, state: str = STATE) -> None:
        """Waits for steps after `reached`."""
        wait_until(
            lambda: max(self.rows(state), default=0) > reached + 5, timeout_s, f"steps after {reached}"
        )

    def failures(self) -> list[dict[str, Any]]:
        """What was told of units that failed."""
        self.box.run("journalctl", "--sync", check=False)
        told = self.box.run("journalctl", "-o", "json", "STOKER_EVENT=unit_failed", check=False).stdout
        return [json.loads(line) for line in told.splitlines()]

    def group(self, unit: str) -> set[int]:
        """The processes of a unit."""
        place = self.box.show(unit, "ControlGroup")
        found = self.box.run(
            "sh",
            "-c",
            f"cat /sys/fs/cgroup/systemd{place}/cgroup.procs || cat /sys/fs/cgroup{place}/cgroup.procs",
        )
        return set(map(int, found.stdout.split()))

    def environ(self, pid: int) -> str:
        """The environment of a process, each variable after an end of line."""
        return "\n" + self.box.path(f"/proc/{pid}/environ").read_bytes().replace(b"\0", b"\n").decode()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    data, tools = tmp_path_factory.mktemp("parquet"), tmp_path_factory.mktemp("tools")
    for number in range(2):
        write_parquet(data / f"{number}.parquet", documents(400, seed=number), seed=number)
    wheel = offline_wheel(built_wheel(tmp_path_factory), tools, PACKAGES)
    packages_apart(tools / "packages")
    quick_python(tools, f"{PYTHON}/bin/python3")
    binds = [(REPO, str(REPO)), (BASE, PYTHON), (data, "/srv/parquet"), (tools, "/srv/tools")]
    with Box("acceptance", binds, hybrid=missing_hybrid() is None) as box:
        try:
            for path in (data, tools):
                path.chmod(0o755)  # pytest's directories are private, and the daemons are another user
            for folder in (*REPO.parents, *BASE.parents):
                box.run("chmod", "a+rx", str(folder))
            wheels = [f"/srv/tools/{each.name}" for each in (wheel, next_wheel(wheel, tools))]
            machine = Machine(box, wheels)
            machine.install(wheels[0], python=f"{PYTHON}/bin/python3")
            box.write(f"/etc/systemd/system/{DROP_IN}", OF_TESTS)
            box.write(
                "/etc/systemd/system/hub.service", f"[Service]\nExecStart={PYTHON}/bin/python3 /srv/hub.py\n"
            )
            box.write("/srv/hub.py", HUB.replace("TOKEN", TOKEN))
            box.write("/etc/stoker/hub-token", f"{TOKEN}\n")
            box.path("/etc/stoker/hub-token").chmod(0o600)
            box.run("systemctl", "start", "hub.service")
            for name, text in (("one", TRAINS), ("two", WAITS)):
                box.write(f"/etc/stoker/{name}.yaml", text)
                box.run("install", "-d", "-o", "stoker", f"/srv/fast/{name}")
                machine.stoker("units", f"/etc/stoker/{name}.yaml", "--write", user="root")
            box.run("systemctl", "mask", *MASKED)
            box.run("systemctl", "daemon-reload")
            box.run("systemctl", "enable", "--now", "stoker@one.target", "stoker@two.target")
            machine.goes_on(5, 180)
            yield machine
        finally:
            if box.pid:
                print(box.journal("stoker-*", "-o", "short"))  # pytest shows it where a test failed


def test_no_unit_is_exposed_by_more_than_two_points_with_what_its_pipeline_adds(machine: Machine) -> None:
    others = [f"stoker-{name}@one.service" for name in ("audit", "scrub", "notify")]
    others.append(f"stoker-failed@{SUPERVISOR}.service")
    for unit in (*ONE, TWO, *others):
        scored = machine.box.run(
            "systemd-analyze", "security", "--no-pager", "--threshold=20", unit, check=False
        )
        assert scored.returncode == 0, f"{unit}: {scored.stdout.splitlines()[-1]}"
        shown = machine.box.run("systemctl", "show", "-P", "ReadWritePaths", unit).stdout
        assert ("/srv/fast/" in shown) == ("stoker-failed" not in unit), "its drop-in counts"


def test_the_hubs_token_arrives_and_is_nowhere_to_be_read(machine: Machine) -> None:
    box = machine.box
    wait_until(lambda: "yes\n" in box.journal("hub"), what="a request with the token")
    assert "no\n" not in box.journal("hub")
    shown = box.run("systemctl", "show", *ONE, TWO).stdout + box.run("ps", "axeww").stdout
    environs = [machine.environ(pid) for unit in (*ONE, TWO) for pid in machine.group(unit)]
    assert len(environs) > 5
    journal = box.run("journalctl", "-o", "export").stdout
    state = box.run("grep", "-rl", TOKEN, "/var/lib/stoker", "/run/stoker", "/tmp", check=False).stdout
    for what, text in (("show and ps", shown), ("environ", "".join(environs)), ("journal", journal)):
        assert TOKEN not in text, what
    assert state == ""


def test_no_child_can_speak_to_systemd_for_its_daemon(machine: Machine) -> None:
    for unit in ONE:
        main = machine.pid(unit)
        assert "\nNOTIFY_SOCKET=" in machine.environ(main), unit
        for pid in machine.group(unit) - {main}:
            assert "\nNOTIFY_SOCKET=" not in machine.environ(pid), unit
    assert machine.group(SUPERVISOR) > {machine.pid(SUPERVISOR), machine.trainer()}


def test_each_daemon_that_is_killed_or_hangs_comes_back_without_orphans_and_training_goes_on_at_once(
    machine: Machine,
) -> None:
    box = machine.box
    quick = f"/etc/systemd/system/{SUPERVISOR}.d/60-quick.conf"
    box.write(quick, "[Service]\nWatchdogSec=5\n")
    box.run("systemctl", "daemon-reload")
    for unit in ONE:
        before, main, trainer = machine.group(unit), machine.pid(unit), machine.trainer()
        box.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", unit)
        wait_until(lambda u=unit, m=main: machine.pid(u) not in (0, m), what=f"{unit} to be started again")
        if unit == SUPERVISOR:
            wait_until(lambda t=trainer: not box.path(f"/proc/{t}").exists(), what="the trainer's end")
            machine.goes_on(max(machine.rows()), BACK_S)
            assert machine.trainer() != trainer
        else:
            assert machine.trainer() == trainer
        assert not machine.group(unit) & before, f"an orphan of {unit}"
        assert box.show(unit, "NRestarts") == "1"
    steps = machine.rows()
    assert steps == sorted(set(steps)), "each step once, or again from the checkpoint"

    main = machine.pid(SUPERVISOR)
    box.run("kill", "-STOP", str(main))
    wait_until(lambda: machine.pid(SUPERVISOR) not in (0, main), what="the watchdog to start it again")
    machine.goes_on(max(machine.rows()))
    assert box.show(SUPERVISOR, "NRestarts") == "2"
    assert "Watchdog timeout" in box.journal(SUPERVISOR)
    box.path(quick).unlink()
    box.run("systemctl", "daemon-reload")


def test_a_reload_and_an_upgrade_leave_the_trainer_alone_and_refuse_what_is_broken(machine: Machine) -> None:
    box, trainer, main = machine.box, machine.trainer(), machine.pid(SUPERVISOR)
    box.write(FILE, TRAINS.replace("steps: 1000000", "steps: 1000001"))
    box.run("systemctl", "reload", SUPERVISOR)
    assert len(box.journal(SUPERVISOR, "STOKER_EVENT=reloaded").splitlines()) == 1

    box.write(FILE, TRAINS.replace("seq_len", "seq_lne"))
    said = machine.stoker("reload", FILE, code=78)
    assert f"{FILE}:" in said
    assert "seq_len" in said
    box.write(FILE, TRAINS)

    machine.install(machine.wheels[1])
    assert "version 9.9.9" in machine.stoker("reload", FILE)
    (broken,) = box.path("/opt/stoker").glob("9.9.9-*/lib/python*/site-packages/stokerd/supervision/loop.py")
    text = broken.read_text()
    broken.write_text(f"{text}\ndef broken(:\n")
    assert "loop.py" in machine.stoker("reload", FILE, code=78)
    broken.write_text(text)

    machine.goes_on(max(machine.rows()))
    assert (machine.trainer(), machine.pid(SUPERVISOR)) == (trainer, main)
    steps = machine.rows()
    assert steps == list(range(steps[0], steps[0] + len(steps))), "every step once"


def test_a_reload_beside_a_start_a_stop_or_a_back_off_harms_nothing(machine: Machine) -> None:
    box, unit, trainer = machine.box, ONE[1], machine.trainer()
    box.run("systemctl", "restart", "--no-block", unit)
    box.run("systemctl", "reload", unit)  # it waits for the start
    assert box.show(unit, "ActiveState") == "active"

    box.run("systemctl", "reload", "--no-block", unit)
    wait_until(lambda: box.show(unit, "SubState") == "reload", what="the reload to be under way")
    box.run("systemctl", "stop", unit)
    assert box.show(unit, "Result") == "success"
    said = box.run("systemctl", "reload", unit, check=False)
    assert "is not active, cannot reload" in said.stderr
    assert "stage-shard" not in machine.stoker("reload", FILE), "the others are reloaded"

    slow = f"/etc/systemd/system/{unit}.d/60-slow.conf"
    box.write(slow, "[Service]\nRestartSec=1h\n")
    box.run("systemctl", "daemon-reload")
    box.run("systemctl", "start", unit)
    box.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", unit)
    wait_until(lambda: box.show(unit, "SubState") == "auto-restart", what="the back-off")
    assert box.run("systemctl", "reload", unit, check=False).returncode != 0
    assert box.show(unit, "SubState") == "auto-restart"
    box.path(slow).unlink()
    box.run("systemctl", "daemon-reload")
    box.run("systemctl", "start", unit)
    assert machine.trainer() == trainer
    assert not machine.failures()


@pytest.mark.skipif(missing_hybrid() is not None, reason=f"no limit of memory here: {missing_hybrid()}")
def test_a_worker_that_the_memory_limit_kills_leaves_its_daemon(machine: Machine) -> None:
    box, unit = machine.box, ONE[1]
    box.run("systemctl", "stop", unit)
    box.run("systemctl", "set-property", "--runtime", unit, "MemoryMax=56M")  # not enough for a builder
    box.run("systemctl", "start", unit)
    main, restarts = machine.pid(unit), box.show(unit, "NRestarts")
    write_parquet(box.path("/srv/parquet/more.parquet"), documents(400, seed=7), seed=7)
    wait_until(lambda: "SIGKILL" in box.journal(unit), what="a worker's end to be told")
    assert (machine.pid(unit), box.show(unit, "NRestarts")) == (main, restarts)
    box.run("systemctl", "set-property", "--runtime", unit, "MemoryMax=")


def test_after_a_power_cut_everything_goes_on_by_itself(machine: Machine) -> None:
    reached = max(machine.rows())
    machine.box.power_cut()
    machine.box.boot()
    machine.goes_on(reached, 90)
    for unit in (*ONE, TWO):
        assert machine.box.show(unit, "ActiveState") == "active", unit
    assert "balanced" in machine.stoker("audit", FILE)


def test_a_stop_seals_the_last_step_and_an_uninstallation_leaves_the_data(machine: Machine) -> None:
    box, scrub = machine.box, "stoker-scrub@one.service"
    box.write(f"/etc/systemd/system/{scrub}.d/60-slow.conf", "[Service]\nExecStartPre=sleep infinity\n")
    box.run("systemctl", "daemon-reload")
    box.run("systemctl", "start", "--no-block", scrub)
    wait_until(lambda: box.show(scrub, "ActiveState") == "activating", what="the scrub to be under way")
    box.run("systemctl", "disable", "--now", "stoker@one.target", "stoker@two.target")
    assert [box.show(unit, "Result") for unit in (*ONE, TWO, scrub)] == ["success"] * 5
    wait_until(lambda: box.show(scrub, "ActiveState") == "inactive", what="the scrub to end with its target")
    last = f"{STATE}/runs/main/checkpoints/step-{max(machine.rows()):09d}"
    machine.stoker("verify", "checkpoint", last)

    box.run("systemctl", "unmask", *MASKED)
    box.run("/opt/stoker/current/bin/python", "-m", "stoker.install", "--uninstall")
    listed = box.run("systemctl", "list-unit-files", "stoker*", check=False).stdout
    assert "0 unit files listed" in listed
    assert not os.path.lexists(box.path("/opt/stoker"))
    assert box.path(last).is_dir()
    assert box.path(FILE).exists()


def test_a_person_runs_a_pipeline_by_a_systemd_of_their_own(machine: Machine) -> None:
    box, state, file = machine.box, "/home/ann/state", "/home/ann/.config/stoker/mine.yaml"
    text = TRAINS.replace("name: one", "name: mine").replace("/srv/fast/one", "/home/ann/hot")
    box.run("useradd", "--create-home", "--uid", "4242", "ann")
    box.write("/etc/systemd/system/user-runtime-dir@.service", RUNTIME_DIR)
    box.write("/etc/systemd/system/user@4242.service.d/box.conf", OF_LOGIN)
    box.write(file, text.replace(STATE, state))
    box.write("/home/ann/.config/stoker/wrong.yaml", f"name: wrong\nstate: {state}\ntrian: {{}}\n")
    box.write(f"/home/ann/.config/systemd/user/{DROP_IN}", OF_TESTS)
    box.run("chown", "-R", "ann", "/home/ann")
    box.run("systemctl", "daemon-reload")
    box.run("systemctl", "start", "user@4242.service")

    def systemctl(*words: str, check: bool = True) -> str:
        said = box.run(*PERSON, "systemctl", "--user", *words, check=check)
        return said.stdout

    def stoker(*words: str) -> str:
        said = box.run(*PERSON, "/home/ann/.local/bin/stoker", *words)
        return said.stdout

    machine.install(machine.wheels[0], "--user", by=PERSON)
    stoker("units", file, "--user", "--write")
    systemctl("daemon-reload")
    systemctl("enable", "--now", "stoker@mine.target")
    machine.goes_on(5, state=state)
    units = [unit.replace("one", "mine") for unit in ONE]
    trainer = machine.trainer("/run/user/4242/stoker/mine")

    systemctl("reload", units[2])
    assert systemctl("is-active", *units).split() == ["active"] * 3
    assert machine.trainer("/run/user/4242/stoker/mine") == trainer
    differing = box.run("journalctl", "--quiet", "STOKER_EVENT=unit_differs", "_UID=4242", check=False)
    assert not differing.stdout
    systemctl("start", "stoker-stage-shard@wrong.service", check=False)
    (told,) = wait_until(machine.failures, what="the failure to be told")
    assert (told["PRIORITY"], told["STOKER_EXIT_CODE"], told["_UID"]) == ("2", "78", "4242")
    assert "systemctl --user start stoker-stage-shard@wrong.service" in told["STOKER_REMEDY"]

    systemctl("disable", "--now", "stoker@mine.target")
    assert systemctl("show", "-P", "Result", *units).split() == ["success"] * 3
    stoker("verify", "checkpoint", f"{state}/runs/main/checkpoints/step-{max(machine.rows(state)):09d}")
