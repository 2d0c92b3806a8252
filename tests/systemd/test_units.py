"""The shipped units in a real systemd: start, look, stop, and refuse what is wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from support.boxed import DROP_IN, OF_TESTS, training
from support.installing import built_wheel, offline_wheel, packages_apart, quick_python
from support.manual import commands, filled
from support.prometheus import LACKING
from support.skipping import unless_missing
from support.text import documents, write_parquet
from support.waiting import wait_until
from systemd.box import Box, missing

REPO = Path(__file__).resolve().parents[2]
DAEMONS = ("download-watchdog", "stage-shard", "train-supervisor")
UNITS = [f"stoker-{daemon}@thread.service" for daemon in DAEMONS]
PIPELINE = training("thread", "every: 30m")

# The guide's own lines set the box up, word for word but for the pipeline's name.
GUIDE = (REPO / "docs" / "install.md").read_text().replace("fineweb", "thread")
*INSTALL, ENABLE, JOURNAL = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)[0].splitlines()
SUDO = """#!/bin/sh
if [ "$1" = -u ]; then user=$2; shift 2; exec runuser -u "$user" -- "$@"; fi
exec "$@"
"""

PROBE = """
[Service]
Type=oneshot
ExecStart={run}
StateDirectory=stoker/%i
{sandbox}
"""
# Until there is something, or nothing more, if so asked: each Python costs more than its looks.
SCRAPE = """
import json, sys, time, urllib.request
url, until, end = *sys.argv[1:], time.time() + 60
while time.time() < end:
    said = urllib.request.urlopen(url, timeout=10).read().decode()
    if not until or bool(json.loads(said)["data"]["result"]) == (until == "some"):
        break
    time.sleep(0.2)
print(said)
"""

MEMORY_OF_WORKERS = {
    "stage_shard": "stoker_shard_workers_rss_bytes",
    "train_supervisor": "stoker_trainer_rss_bytes",
}

# What shows something of units, and names which.
SHOWS = re.compile(r"(journalctl .*(@|=)|systemctl (status|list-\w+) )")

TIMERS = ("stoker-audit@thread.timer", "stoker-scrub@thread.timer")
NOTIFY = "stoker-notify@thread"

pytestmark = [pytest.mark.systemd, unless_missing("units in a real systemd", missing())]


def let_anyone_enter(box: Box, path: Path) -> None:
    """In the box's own copy of the file system, the daemons' user must reach the interpreter and the code."""
    for folder in path.parents:
        box.run("chmod", "a+x", str(folder))


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    data = tmp_path_factory.mktemp("parquet")
    data.chmod(0o755)  # pytest's directories are private, and the daemons are another user
    for number in range(2):
        write_parquet(data / f"{number}.parquet", documents(400, seed=number), seed=number)
    site = tmp_path_factory.mktemp("site")
    # No network here: Stoker from its wheel, and the packages that it needs from the tests' environment.
    packages = packages_apart(site / "packages")
    wheel = offline_wheel(built_wheel(tmp_path_factory), site, "/srv/packages")
    for path in (site, packages):
        path.chmod(0o755)
    binds = [
        (REPO, str(REPO)),
        (data, "/srv/parquet"),
        (packages, "/srv/packages"),
        (wheel.parent, "/srv/wheel"),
    ]
    with Box("units", binds) as started:
        for path in (Path(sys.executable).resolve(), Path(sysconfig.get_paths()["stdlib"]) / "os.py", REPO):
            let_anyone_enter(started, path)
        started.write("/usr/local/bin/sudo", SUDO)
        started.run("chmod", "a+x", "/usr/local/bin/sudo")
        started.write("/root/checkout/thread.yaml", PIPELINE)
        started.run("ln", "-s", f"{REPO}/deploy", "/root/checkout/deploy")
        started.write(f"/etc/systemd/system/{DROP_IN}", OF_TESTS)
        quick_python(site)
        options = "STOKER_PYTHON=/srv/wheel/python"
        assert INSTALL[0].startswith("sudo scripts/install ")
        started.run("bash", "-c", f"{options} {REPO}/scripts/install /srv/wheel/{wheel.name}", timeout_s=300)
        for line in INSTALL[1:]:
            started.run("bash", "-c", f"cd /root/checkout && {line}")
        yield started
        print(started.journal("stoker-*"))  # pytest shows it where a test failed


def in_state(box: Box, name: str) -> Path:
    return box.path(f"/var/lib/stoker/thread/{name}")


def trained_steps(box: Box) -> int:
    log = in_state(box, "runs/main/log/metrics.jsonl")
    return sum('"loss"' in line for line in log.read_text().splitlines()) if log.exists() else 0


def run_target(box: Box) -> None:
    """Has the pipeline train."""
    box.run("sh", "-c", ENABLE)
    for unit in UNITS:
        wait_until(lambda unit=unit: box.show(unit, "ActiveState") == "active", what=f"{unit} to be READY")
    wait_until(lambda: trained_steps(box) > 20, 90, "twenty steps of training")


def test_the_target_starts_all_three_which_report_and_are_scraped_and_refuse_a_misspelt_file(
    box: Box,
) -> None:
    run_target(box)
    for unit in UNITS:
        assert box.show(unit, "StatusText"), unit
        assert box.show(unit, "NRestarts") == "0", box.journal(unit)
        assert (box.show(unit, "User"), box.show(unit, "WatchdogUSec")) == ("stoker", "3min")
    for timer in (*TIMERS, f"{NOTIFY}.timer"):
        assert box.show(timer, "ActiveState") == "active", timer
    for daemon in ("download_watchdog", "stage_shard", "train_supervisor"):
        holder = json.loads(in_state(box, f"locks/{daemon}.lock").read_text())
        page = box.run(sys.executable, "-c", SCRAPE, f"http://{holder['metrics']}/metrics", "").stdout
        assert "stoker_daemon_rss_bytes " in page, daemon
        assert MEMORY_OF_WORKERS.get(daemon, "stoker_daemon_rss_bytes") in page
    records = box.journal_json(UNITS[2])
    assert any(record.get("STOKER_EVENT") and record.get("STOKER_PIPELINE") == "thread" for record in records)

    followed = box.run(*shlex.split(JOURNAL.replace("-fu", "-o json -u"))).stdout
    assert {json.loads(line).get("_SYSTEMD_UNIT") for line in followed.splitlines()} >= set(UNITS)

    for unit in UNITS:
        assert box.show(unit, "ControlGroup").startswith("/stoker.slice/"), unit
    assert [box.show(unit, "CPUWeight") for unit in UNITS] == ["20", "20", "[not set]"], "training goes first"
    status = json.loads(box.path("/run/stoker/thread/status/train_supervisor.json").read_text())
    pids = box.show(UNITS[2], "MainPID"), status["trainer_pid"]
    scores = [int(box.run("cat", f"/proc/{pid}/oom_score_adj").stdout) for pid in pids]
    assert scores[1] > scores[0], "the trainer before the daemon that can tell of its end"
    assert_each_shows(box, "systemctl", 5)
    box.write("/etc/stoker/thread.yaml", PIPELINE + "trian: {}\n")
    assert box.run("systemctl", "reload", UNITS[2], check=False).returncode != 0
    assert re.search(r"thread\.yaml:\d+: trian: ", box.journal(UNITS[2]))
    box.write("/etc/stoker/thread.yaml", PIPELINE)
    box.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", UNITS[0])
    wait_until(lambda: box.show(UNITS[0], "NRestarts") == "1", what="a killed daemon to be started again")


@pytest.mark.prometheus
@pytest.mark.skipif(bool(LACKING), reason=f"no {', '.join(LACKING)} here")
def test_prometheus_as_its_own_user_scrapes_the_units_and_an_orderly_stop_takes_them_away(box: Box) -> None:
    def asked(query: str, until: str = "") -> list[Any]:
        address = "http://127.0.0.1:9090/api/v1/query?" + urlencode({"query": query})
        said = box.run(sys.executable, "-c", SCRAPE, address, until).stdout
        found: list[Any] = json.loads(said)["data"]["result"]
        return found

    guide = (REPO / "docs" / "monitoring.md").read_text()
    (copy,) = re.findall(r"^sudo (cp -r deploy/prometheus/\S+ \S+)", guide, re.MULTILINE)
    hurry = "sed -i 's/: 1[05]s$/: 1s/' /etc/prometheus/prometheus.yml"
    box.run("sh", "-c", f"cd /root/checkout && {copy} && {hurry}")
    # Debian's own unit ends with 217/USER in this copy: its PrivateUsers=true finds no user namespace here.
    unit = ["--unit=prometheus-here", "-p", "User=prometheus", "-p", "StateDirectory=scraped"]
    flags = ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/var/lib/scraped"]
    box.run("systemd-run", *unit, "prometheus", *flags, "--web.listen-address=127.0.0.1:9090")
    run_target(box)
    wait_until(lambda: "ready to receive" in box.journal("prometheus-here"), what="Prometheus to be ready")

    three = 'count by (pipeline) (up{job="stoker",pipeline="thread"} == 1) == 3'
    assert asked(three, "some"), "three units are scraped"
    assert not asked('{__name__=~".+",exported_pipeline=~".+"} or {__name__=~".+",exported_daemon=~".+"}')

    box.run("systemctl", "stop", "stoker@thread.target")

    assert not asked('up{job="stoker"}', "none"), "the targets vanish"
    box.run("systemctl", "stop", "prometheus-here.service")


def test_a_stop_of_the_target_leaves_a_sealed_checkpoint_and_its_timers_audit_and_scrub(
    box: Box,
) -> None:
    if trained_steps(box) < 20:
        run_target(box)
    box.run("systemctl", "stop", "stoker@thread.target")

    for unit in (*UNITS, *TIMERS, f"{NOTIFY}.timer"):  # at once: who stops the target may cut the power next
        assert box.show(unit, "ActiveState") == "inactive", box.journal(unit)
        assert box.show(unit, "Result") == "success", box.journal(unit)
    *_, said = box.journal_json(UNITS[2], "-t", "stoker-trainer")
    assert said["STOKER_LAUNCH"] in box.journal(UNITS[2], "-o", "json", "STOKER_EVENT=trainer_launched")
    assert said["STOKER_RANK"] == "0"
    (checkpoint,) = in_state(box, "runs/main/checkpoints").glob("step-*")
    inside = f"/var/lib/stoker/thread/runs/main/checkpoints/{checkpoint.name}"
    box.run("stoker", "verify", "checkpoint", inside)
    assert int(checkpoint.name.removeprefix("step-")) >= 20

    services = fire_timers(box)
    for service in services:
        wait_until(
            lambda service=service: box.show(service, "ExecMainExitTimestamp"), what=f"{service} to end"
        )
        assert box.show(service, "Result") == "success", box.journal(service)
    assert "balanced" in box.journal(services[1])
    assert json.loads(in_state(box, "audit.json").read_text())["balanced"]

    box.write("/etc/stoker/thread.yaml", f"{PIPELINE}notify: {{routes: [{{command: [sh, -c, cat >&2]}}]}}\n")
    box.run("systemctl", "start", f"{NOTIFY}.service")
    record = in_state(box, "notify.json")
    assert json.loads(record.read_text())["routes"][0]["failing_since"] is None
    assert box.run("stat", "-c", "%U", "/var/lib/stoker/thread/notify.json").stdout == "stoker\n"
    assert "Finished" not in box.journal(f"{NOTIFY}.service"), "no lines each minute"
    box.write("/etc/stoker/thread.yaml", PIPELINE)


def assert_each_shows(box: Box, tool: str, least: int) -> None:
    """Types each command of the manual that shows something by systemctl or journalctl."""
    launch = next(
        record["STOKER_LAUNCH"]
        for record in box.journal_json("stoker-train-supervisor@thread")
        if record.get("STOKER_EVENT") == "trainer_launched"
    )
    values = {"NAME": "thread", "fineweb": "thread", "LAUNCH": launch, "disk_full": "trainer_launched"}
    values |= {"{unit}": "stoker-stage-shard@thread.service", "-fu": "-u"}  # -f has no end
    shown = [one for one in commands() if SHOWS.match(one) and one.startswith(tool)]
    # Prometheus is not here, and a notification that succeeds leaves no line.
    typed = [one for one in shown if not re.search("prometheus|stoker-notify", one)]
    assert len(typed) >= least
    for command in typed:
        said = box.run("sh", "-c", filled(command, values), check=False)
        assert re.search("stoker[-@]", said.stdout), f"{command}: {said.returncode} {said.stderr}"


def fire_timers(box: Box) -> list[str]:
    """Lets the timers of the audit and of the scrub fire now; returns their services."""
    for timer in TIMERS:
        assert box.show(timer, "Persistent") == "yes"
        now = "[Timer]\nOnActiveSec=0\nRandomizedDelaySec=0\n"
        box.write(f"/etc/systemd/system/{timer}.d/now.conf", now)
    box.run("systemctl", "daemon-reload")
    box.run("systemctl", "start", *TIMERS)
    return [timer.replace(".timer", ".service") for timer in TIMERS]


def test_a_misspelt_key_ends_with_78_and_is_not_restarted(box: Box) -> None:
    box.write("/etc/stoker/misspelt.yaml", PIPELINE.replace("name: thread", "name: misspelt") + "trian: {}\n")
    unit = "stoker-stage-shard@misspelt.service"

    box.run("systemctl", "start", unit, check=False)

    wait_until(lambda: box.show(unit, "ActiveState") == "failed", what="the unit to fail")
    assert box.show(unit, "ExecMainStatus") == "78"
    assert box.show(unit, "NRestarts") == "0"
    assert "trian" in box.journal(unit)
    assert "train" in box.journal(unit)

    (entry,) = wait_until(lambda: failures(box), what="the failure to be told")
    assert (entry["PRIORITY"], entry["STOKER_UNIT"], entry["STOKER_EXIT_CODE"]) == ("2", unit, "78")
    assert entry["STOKER_RESULT"] == "exit-code"
    assert "trian" in entry["STOKER_LAST_ERROR"]
    assert "stoker config check /etc/stoker/misspelt.yaml" in entry["STOKER_REMEDY"]


def test_every_journalctl_of_the_manual_shows_something_also_of_units_that_have_stopped(box: Box) -> None:
    assert_each_shows(box, "journalctl", 8)


def failures(box: Box) -> list[dict[str, Any]]:
    return [one for one in box.journal_json("stoker-failed@*") if one.get("STOKER_EVENT") == "unit_failed"]


def test_systemd_finds_nothing_wrong_with_the_units(box: Box) -> None:
    laid = box.path("/usr/local/lib/systemd/system")
    units = [
        f"/usr/local/lib/systemd/system/{path.name}" for path in laid.glob("stoker*.*") if path.is_file()
    ]
    assert len(units) == 13
    checked = box.run("systemd-analyze", "verify", *units)
    assert checked.stderr == "", "systemd-analyze returns 0 even on an unknown key, so silence is demanded"
    assert os.fspath(REPO) not in checked.stdout


def test_the_sandbox_allows_what_daemons_and_trainer_need_and_refuses_the_rest(box: Box) -> None:
    run = f"{sys.executable} {REPO / 'tests' / 'systemd' / 'probe.py'} %S/stoker/%i"
    shipped = (REPO / "deploy/systemd/stoker-train-supervisor@.service").read_text()
    sandbox = shipped[shipped.index("# What it may not do") : shipped.index("[Install]")]
    box.write("/etc/systemd/system/stoker-probe@.service", PROBE.format(run=run, sandbox=sandbox))
    box.run("systemctl", "start", "stoker-probe@probe.service")
    found = json.loads(box.path("/var/lib/stoker/probe/probe.json").read_text())

    refused = {what: said for what, said in found.items() if said != "ok"}
    written = [what for what in found if what.startswith("write /")]
    assert refused.pop("log of the kernel") in ("EPERM", "EACCES", "ENOENT")
    assert refused == {
        **dict.fromkeys(written, "EROFS"),
        **dict.fromkeys(("unshare", "chown"), "EPERM"),
        "packet": "EAFNOSUPPORT",
    }
