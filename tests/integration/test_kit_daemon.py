"""The daemons' frame as real processes: start, refuse, serve, beat, stop, and being killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.kit.events import EventTail
from stoker.kit.lock import Lock, read_holder
from stoker.observe.status import read_status
from stoker.store.layout import StateLayout
from support.processes import RunningDaemon, start_daemon
from support.waiting import LONG_S, wait_until

NAME = "stage_shard"
DAEMON = f"""
import sys
from pathlib import Path
from stoker.kit.daemon import DaemonContext, daemon_main
from stoker.kit.reload import Reload
from stoker.store.errors import DataError

def story(context: DaemonContext) -> int:
    what = Path(sys.argv[2]).read_text()
    if what == "fail":
        raise DataError("set 3 is rotten")
    if what == "bug":
        raise KeyError("surprise")
    if what == "files":
        held = [open(sys.argv[2]) for _ in range(200)]
    context.waiter.watch(context.layout.requests({NAME!r}))
    context.ready("looking")
    rounds, reload = 0, Reload(context, "stokerd.common.check_reload")
    while not context.stopping and not context.once:
        if (checked := reload.check()) is not None:
            context.hand_over({{}}, {{}}, checked)
        rounds += 1
        context.beat({{"rounds": rounds}}, f"round {{rounds}}")
        context.waiter.wait(3600 if what == "rest" else 0.2)
    return 0

sys.exit(daemon_main({NAME!r}, story, [sys.argv[1], *sys.argv[3:]]))
"""
PIPELINE = """
name: {name}
state: {state}
hot: {hot}
dataset: {{name: prose, source: {{kind: folder, path: {source}}}}}
train:
  steps: 10
  model: {{layers: 1, width: 64, heads: 2, ffn: 128}}
  seq_len: 64
  global_batch: 8
metrics: {{ports: {{download: 0, shard: {port}, train: 0}}}}
"""


class House:
    """A pipeline whose stage_shard is a story of a few lines."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout = StateLayout(root / "state")
        self.runtime = root / "run"
        self.errors = root / "stderr"
        self.environ = {"RUNTIME_DIRECTORY": str(self.runtime)}
        self.story = root / "story"
        self.file = root / "house.yaml"
        self.running: list[RunningDaemon] = []
        (root / "source").mkdir()
        self.configure()
        self.story.write_text("work")

    def configure(self, port: int = 0) -> None:
        state, hot, source = self.layout.state, self.root / "hot", self.root / "source"
        self.file.write_text(PIPELINE.format(name="house", state=state, hot=hot, source=source, port=port))

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-c", DAEMON, str(self.file), str(self.story), *options]

    def start(self, **environ: str) -> RunningDaemon:
        self.running.append(start_daemon(self.command(), self.errors, environ={**self.environ, **environ}))
        return self.running[-1]

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, **self.environ}
        return subprocess.run(
            self.command(*options), env=environ, capture_output=True, text=True, timeout=60, check=False
        )

    def status(self) -> dict[str, Any]:
        return read_status(self.layout)[NAME]

    def events(self) -> list[str]:
        return [event["event"] for event in EventTail(self.layout).new()]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    for daemon in house.running:
        daemon.kill()


def test_a_daemon_stays_small_shows_itself_begins_again_on_a_hangup_and_stops(  # noqa: PLR0915
    house: House,
) -> None:
    target = house.runtime / "targets" / f"house-{NAME}.json"
    target.parent.mkdir(parents=True, mode=0o700)
    target.write_text('[{"targets": ["127.0')  # torn, of a machine that lost its power
    path = str(house.root / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        server.settimeout(LONG_S)
        daemon = house.start(NOTIFY_SOCKET=path, WATCHDOG_USEC="5000000")
        heard: list[str] = []
        while "WATCHDOG=1" not in heard:
            heard.append(server.recv(4096).decode())
        assert heard[:2] == ["READY=1", "STATUS=looking"]
        body = wait_until(lambda: house.status()["body"].get("rounds", 0) > 1 and house.status()["body"])
        assert (body["daemon"], body["pipeline"], body["pid"]) == (NAME, "house", daemon.pid)
        assert body["ready"] and body["state"] == "running" and body["text"].startswith("round ")
        status = house.status()
        assert status["running"] and status["state"] == "running" and status["pid"] == daemon.pid
        found = json.loads(target.read_text())[0]
        assert found == {"targets": [status["metrics"]], "labels": {"pipeline": "house", "daemon": NAME}}
        assert stat.S_IMODE(target.stat().st_mode) == 0o644
        assert stat.S_IMODE(target.parent.stat().st_mode) == 0o755
        assert daemon.rss_bytes() < 45 << 20
        maps = Path(f"/proc/{daemon.pid}/maps").read_text()
        assert not [name for name in ("torch", "numpy", "pyarrow", "tokenizers", "xxhash") if name in maps]
        refused = house.run()
        assert refused.returncode == 75, "a second copy"
        assert f"pid {daemon.pid}" in refused.stderr and NAME in refused.stderr
        assert "Traceback" not in refused.stderr

        holder = read_holder(house.layout.lock(NAME))
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reloaded" in house.events())
        wait_until(lambda: house.status()["body"].get("rounds"), what="a cycle of the new code")
        same = ("pid", "start_ticks", "since")
        assert [house.status()["body"][name] for name in same] == [body[name] for name in same]
        assert holder is not None and read_holder(house.layout.lock(NAME)) == holder
        with urllib.request.urlopen(f"http://{holder.extra['metrics']}/metrics", timeout=LONG_S) as page:
            text = page.read().decode()
        assert 'stoker_events_total{event="daemon_started"} 1.0' in text
        assert 'stoker_events_total{event="reloaded"} 1.0' in text

        house.runtime.rename(house.root / "taken")  # by a cleaner: the daemon goes on writing into it
        wait_until(lambda: house.status()["body"].get("rounds"), what="a new snapshot")
        server.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # a full queue takes no more, and systemd's is never full
            while server.recv(4096):
                pass
        server.settimeout(LONG_S)
        os.kill(daemon.pid, signal.SIGTERM)
        while "STOPPING=1" not in heard:
            heard.append(server.recv(4096).decode())
    assert daemon.process.wait(LONG_S) == 0, "a second TERM could meet an interpreter that is gone"
    assert not target.exists()
    status = house.status()
    assert not status["running"] and status["state"] == "stopped" and status["since"]
    assert status["pid"] is None and status["metrics"] is None
    assert status["body"]["state"] == "stopped" and status["body"]["exit_code"] == 0
    assert house.events() == ["daemon_started", "reloaded", "daemon_stopped"]
    assert "Traceback" not in daemon.said()


def test_a_state_directory_is_one_pipelines_and_an_old_one_without_its_name_is_taken_up_and_swept(
    house: House,
) -> None:
    house.layout.create()  # as it was before anybody wrote a name into it
    run = house.layout.run("main")
    run.create()
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as dead:
        pass
    left = [place / f".tmp-a.json-{dead.pid}-0123abcd" for place in (run.root, house.layout.sources)]
    living = house.layout.receipts / f".tmp-a.json-{os.getpid()}-0123abcd"
    for path in (*left, living):
        path.write_bytes(b"")
    assert house.run("--once").returncode == 0
    assert not any(path.exists() for path in left), "what a killed process left half written"
    assert living.exists()
    events = house.events()
    guest = house.file.read_text().replace("name: house", "name: guest")
    house.file = house.root / "guest.yaml"
    house.file.write_text(guest)
    refused = house.run("--once")
    assert refused.returncode == 78 and house.events() == events
    assert "is that of pipeline house" in refused.stderr and str(house.layout.owner_lock) in refused.stderr
    for command in (["run", str(house.file)], ["rollback", str(house.file), "1"]):
        assert exit_code(command) == 78
    house.layout.owner_lock.unlink()  # the same pipeline under a new name
    assert house.run("--once").returncode == 0


def test_a_killed_daemon_is_stopped_for_the_onlooker_starts_again_and_its_third_kill_is_told_once(
    house: House,
) -> None:
    for _ in range(4):
        daemon = house.start()
        wait_until(lambda: house.status()["running"] and house.status()["body"].get("rounds"))
        daemon.kill()
        status = house.status()
        assert not status["running"] and status["body"]["rounds"] >= 1, "what is known of its last life"
    again = house.start()
    wait_until(lambda: house.status()["running"] and house.status()["body"].get("rounds"))
    holder = read_holder(house.layout.lock(NAME))
    assert holder is not None
    with urllib.request.urlopen(f"http://{holder.extra['metrics']}/metrics", timeout=LONG_S) as page:
        shown = page.read().decode()
    started, unclean = (
        float(shown.split(f"\nstoker_daemon_{name}start_time_seconds ")[1].split()[0])
        for name in ("", "unclean_")
    )
    assert unclean == pytest.approx(started, abs=10.0), "alerts count what follows a kill"
    assert again.stop() == 0
    told = EventTail(house.layout).new()
    # The loop is told right after its fourth start, which finds the third end.
    words = ["daemon_started"] * 4 + ["daemon_crash_loop", "daemon_started", "daemon_stopped"]
    assert [event["event"] for event in told] == words
    assert (told[4]["level"], told[4]["ends"]) == ("error", 3)
    assert "after" not in told[0] and "a kill" in told[1]["after"]


def test_a_daemon_waits_for_a_command_that_holds_its_lock_for_a_moment(house: House) -> None:
    house.layout.create()
    with Lock.acquire(house.layout.lock(NAME), purpose="command"):
        waiting = subprocess.Popen(house.command("--once"), env={**os.environ, **house.environ})
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1.5)
        assert house.status()["state"] == "stopped", "a command is not the daemon"
    assert waiting.wait(LONG_S) == 0


def test_a_wrong_file_exits_78_and_a_wrong_command_line_64_with_a_sentence(house: House) -> None:
    assert house.run("--twice").returncode == 64
    house.file.write_text(house.file.read_text().replace("metrics:", "metrix:"))
    refused = house.run()
    assert refused.returncode == 78
    assert "metrix" in refused.stderr and "house.yaml:" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_taken_metrics_port_exits_69_and_lets_the_lock_go(house: House) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        house.configure(port=other.getsockname()[1])
        refused = house.run()
    assert refused.returncode == 69 and "metrics.ports.shard" in refused.stderr
    assert read_holder(house.layout.lock(NAME)) is None


def test_under_systemd_a_daemon_that_fails_waits_before_it_exits_without_its_lock(house: House) -> None:
    house.story.write_text("fail")
    environ = {**os.environ, **house.environ, "NOTIFY_SOCKET": str(house.root / "nobody")}
    with house.errors.open("wb") as errors:
        process = subprocess.Popen(house.command(), env=environ, stderr=errors)
    house.running.append(RunningDaemon(process, house.errors))
    wait_until(lambda: "daemon_failed" in house.events() and read_holder(house.layout.lock(NAME)) is None)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    process.terminate()
    assert process.wait(5) == -signal.SIGTERM, "a stop is not kept waiting"
    failed = EventTail(house.layout).new()[-1]
    assert (failed["exit_code"], "set 3 is rotten" in failed["message"]) == (65, True)
    assert "Traceback" not in house.running[0].said()


def test_an_error_ends_as_an_event_and_an_exit_code(house: House) -> None:
    house.story.write_text("bug")
    ended = house.run()
    assert ended.returncode == 70 and "Traceback" in ended.stderr
    failed = EventTail(house.layout).new()[-1]
    assert failed["event"] == "daemon_failed" and "KeyError" in failed["message"]
    assert failed["exit_code"] == 70
    assert house.status()["body"]["state"] == "failed"


def test_a_low_soft_limit_of_open_files_is_raised_and_a_low_hard_one_is_told(house: House) -> None:
    def limited(limit: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *house.command("--once")]
        environ = {**os.environ, **house.environ}
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=LONG_S, check=False
        )

    house.story.write_text("files")
    raised = limited("-Sn 32")
    assert raised.returncode == 0, raised.stderr
    told = limited("-n 32")
    assert (told.returncode, told.stderr.count("\n")) == (69, 1)
    assert "only 32 files may be open at once" in told.stderr


def test_an_unsound_state_directory_exits_74_with_a_sentence(house: House) -> None:
    house.layout.create()
    shutil.rmtree(house.layout.state / "events")
    (house.layout.state / "events").write_text("in the way")
    ended = house.run("--once")
    assert ended.returncode == 74 and "events" in ended.stderr and "Traceback" not in ended.stderr


def test_a_loop_at_rest_wakes_for_the_watchdog_before_it_barks(house: House) -> None:
    path = str(house.root / "notify")
    house.story.write_text("rest")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        server.settimeout(LONG_S)
        house.start(NOTIFY_SOCKET=path, WATCHDOG_USEC="1000000")
        heard = []
        while heard.count("WATCHDOG=1") < 3:
            heard.append(server.recv(4096).decode())
