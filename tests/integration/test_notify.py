"""`stoker notify` against real servers and commands: each event arrives, in order, and no secret is shown."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaos.strace import is_here, killing
from stoker.cli.main import exit_code
from stoker.cli.notify import command, sending, sent
from stoker.config.load import load_pipeline
from stoker.kit.events import Events, Log
from stoker.store.errors import StorageError
from stoker.store.layout import TRAIN_SUPERVISOR, StateLayout
from stoker.store.record import read_record, write_record
from support.small_server import Request, SmallServer, own_certificate, small_server

SECRET = "T0PSECRET"  # in each address, never in what is shown
STOKER = str(Path(sys.executable).parent / "stoker")
WORD = "worker_not_started"  # an error
ID = re.compile(r"\btrain_supervisor:(\d+),")


class Told:
    """A pipeline that tells people; a service with `answers`, of which the last stays."""

    def __init__(self, home: Path) -> None:
        self.home, self.file = home, home / "own.yaml"
        self.layout, self.got = StateLayout(home / "state"), list[dict[str, Any]]()
        self.answers, self.beat = [200], 200
        self.heard: Callable[[], object] = bool  # called for each text
        self.layout.create()
        log = Log(TRAIN_SUPERVISOR, "own", environ={})
        self.events = Events(self.layout, log, Counter())
        self.server: SmallServer

    def configure(self, *routes: dict[str, Any], **keys: Any) -> None:
        notify = {"routes": [{"most_an_hour": 1000, **route} for route in routes], **keys}
        body = {"name": "own", "state": "state", "train": {"command": ["true"]}, "notify": notify}
        self.file.write_text(yaml.safe_dump(body))
        self.file.chmod(0o640)

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.server.port}/{SECRET}?rto=60&cto=60"  # on a busy machine

    def answer(self, request: Request) -> None:
        status = self.beat
        if request.body:
            status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.got.append({**json.loads(request.body), "status": status})
            self.heard()
        request.say(status=status)

    def record(self, count: int = 1, word: str = WORD) -> None:
        for _ in range(count):
            self.events.record(word, reason="no room")

    def run(self, *options: str) -> int:
        return exit_code(["notify", str(self.file), *options])

    def ids(self, status: int = 200) -> list[int]:
        return [int(n) for one in self.got if one["status"] == status for n in ID.findall(one["message"])]

    def progress(self, n: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = read_record(self.layout.notify)["routes"][n]
        return found


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "runtime"))
    made = Told(tmp_path)
    with small_server(made.answer) as made.server:
        yield made


@pytest.fixture
def shown(capfd: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """What was printed since the last look, of which none may be a secret."""

    def look() -> str:
        said = capfd.readouterr()
        assert SECRET not in said.out + said.err
        lines = [line for line in said.err.splitlines() if "level=" not in line]  # of the recorded events
        return "\n".join([*said.out.splitlines(), *lines])

    yield look
    look()


def test_what_a_service_refuses_twenty_times_arrives_in_order_and_other_routes_do_not_wait(
    told: Told, shown: Any
) -> None:
    out = told.home / "out"
    told.configure({"url": told.url}, {"command": ["sh", "-c", f"cat >> {out}"]})
    told.record(3)
    assert told.run() == 0
    assert told.got == [] and not out.exists(), "the history is not sent"
    told.answers = [500] * 20 + [200]
    told.record(4)
    for _ in range(20):
        assert told.run() == 0
    assert ID.findall(out.read_text()) == ["4", "5", "6", "7"]
    assert told.ids(500) == [4] * 20 and told.ids() == []
    assert (
        shown() == "stoker notify: notify.routes[0]: it answered HTTP 500; it is tried each minute, for a day"
    )
    told.record()
    assert told.run() == 0 and told.run() == 0

    assert told.ids() == [4, 5, 6, 7, 8]
    first = told.got[-1]
    assert first["title"].startswith("error: own: ") and first["type"] == "failure"
    assert "To do: " in first["message"] and "no room" in first["message"]
    assert SECRET not in told.layout.notify.read_text()
    assert told.progress()["places"][TRAIN_SUPERVISOR][0] == 8


KILLS = """
import os, pathlib, signal, sys
text, home, pattern = sys.stdin.read(), pathlib.Path(sys.argv[1]), sys.argv[2]
turn = int((home / "turn").read_text()) if (home / "turn").exists() else 0
(home / "turn").write_text(str(turn + 1))
act = pattern[turn] if turn < len(pattern) else "."
if act == "b":
    os.kill(os.getppid(), signal.SIGKILL)  # before it has arrived
else:
    with open(home / "out", "a") as stream:
        stream.write(text)
    if act == "a":
        os.kill(os.getppid(), signal.SIGKILL)  # before that is kept
"""


def called(told: Told, most: int) -> int:
    """Call it as a process until it ends by itself; returns the calls."""
    for n in range(1, most + 1):
        if subprocess.run([STOKER, "notify", str(told.file)], check=False).returncode == 0:
            return n
    raise AssertionError(f"it did not end by itself within {most} calls")


@pytest.mark.parametrize("pattern", ["a.b", pytest.param("aabb.ab.b.aab" * 4, marks=pytest.mark.long)])
def test_killed_before_and_after_a_text_arrives_it_sends_each_at_least_once_in_order(
    told: Told, pattern: str
) -> None:
    script = told.home / "kills.py"
    script.write_text(KILLS)
    told.configure({"command": [sys.executable, "-S", str(script), str(told.home), pattern]})
    assert told.run() == 0
    count = pattern.count(".") + pattern.count("a") + 1
    told.record(count)
    calls = called(told, len(pattern) + 1)
    assert calls == 1 + pattern.count("a") + pattern.count("b")
    ids = [int(n) for n in ID.findall((told.home / "out").read_text())]
    assert list(dict.fromkeys(ids)) == [*range(1, count + 1)] == sorted(set(ids)) and ids == sorted(ids)


@pytest.mark.strace
@pytest.mark.skipif(not is_here(), reason="no strace here")
@pytest.mark.parametrize(
    ("call", "when"),
    [
        ("rename", 3),
        *(pytest.param(c, n, marks=pytest.mark.long) for c in ("fsync", "rename") for n in range(1, 6)),
    ],
)
def test_killed_while_it_keeps_what_it_has_sent_it_sends_that_again(told: Told, call: str, when: int) -> None:
    out = told.home / "out"
    told.configure({"command": ["sh", "-c", f"cat >> {out}"]})
    assert told.run() == 0
    told.record(3)
    killer = killing([STOKER, "notify", str(told.file)], call, when, told.home / "strace")
    ended = subprocess.run(killer, check=False)
    assert told.run() == 0
    ids = [int(n) for n in ID.findall(out.read_text())]
    assert sorted(set(ids)) == [1, 2, 3] and ids == sorted(ids)
    if (call, when) == ("rename", 3):  # of a thread: the main one has two, before anything is sent
        assert ended.returncode != 0 and ids == [1, 2, 3, 3]


def test_a_route_that_hangs_holds_up_no_other_and_is_left_behind(
    told: Told, monkeypatch: pytest.MonkeyPatch, shown: Any
) -> None:
    """A service answers only once another has got both texts; then never; a command does not end."""
    monkeypatch.setattr(sending, "COMMAND_S", 0.2)
    held, late = threading.Event(), list[int]()

    def hang(request: Request) -> None:
        held.wait()
        late.extend(map(int, ID.findall(json.loads(request.body)["message"])))
        request.say()

    told.heard = lambda: held.set() if told.ids() == [1, 2] else None
    with small_server(hang) as hanging:
        address = f"json://127.0.0.1:{hanging.port}/{SECRET}?rto=60"
        told.configure({"url": address}, {"command": ["sleep", "600"]}, {"url": told.url})
        assert told.run() == 0
        told.record(2)
        assert told.run() == 0
        assert (told.ids(), late) == ([1, 2], [1, 2])
        held.clear()
        monkeypatch.setattr(command, "CALL_S", 0.2)
        told.configure({"url": address})
        told.record()
        assert told.run() == 0
        assert told.progress()["places"][TRAIN_SUPERVISOR][0] == 2, "it is sent again"
        held.set()
    said = "stoker notify: notify.routes[1]: it did not end within 0 s; it is tried each minute, for a day"
    assert shown() == said


def test_two_calls_do_not_send_at_once(told: Told, shown: Any) -> None:
    told.configure({"command": ["sh", "-c", f"{STOKER} notify {told.file}; echo $? >> {told.home}/again"]})
    assert told.run() == 0
    told.record()
    assert told.run() == 0
    assert (told.home / "again").read_text() == "75\n"
    assert shown() == f"stoker: another `stoker notify {told.file}` runs; wait for it"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make a certificate with")
def test_a_test_shows_what_each_route_answers(
    told: Told, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, certificate = own_certificate(told.home)
    kept = told.home / "address"
    kept.write_text(f"{told.url}\n")
    told.answers, told.beat = [500], 500
    with small_server(told.answer, context=context) as secure:
        address = f"jsons://localhost:{secure.port}/{SECRET}?rto=60&cto=60"
        told.configure(
            {"url_file": str(kept)},
            {"url": address},
            {"url": f"json://127.0.0.1:1/{SECRET}"},
            {"command": ["true"]},
            heartbeat=f"http://127.0.0.1:{told.server.port}/{SECRET}",
        )
        kept.chmod(0o644)
        assert exit_code(["config", "check", str(told.file)]) == 0
        exposed = f"{kept} may be read by every user (mode 0644): chmod 640 {kept}"
        assert f"notify.routes[0].url_file: {exposed}" in shown()
        assert told.run("--test") == 1
        assert shown().splitlines() == [
            "notify.routes[0]: it answered HTTP 500",
            "notify.routes[1]: its TLS certificate is not trusted: self-signed certificate",
            "notify.routes[2]: no answer: Connection refused",
            "notify.routes[3]: it arrived",
            "notify.heartbeat: it answered HTTP 500",
        ]
        assert not told.layout.notify.exists()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
        told.answers, told.beat = [200], 200
        told.configure({"url": address})
        assert told.run("--test") == 0
        monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    assert shown() == "notify.routes[0]: it arrived"


@pytest.mark.parametrize(
    ("route", "line", "why"),
    [
        ({"url": f"foo://{SECRET}"}, "url", "apprise cannot use a 'foo' address like this; "),
        ({"url": f"slack://{SECRET}"}, "url", "apprise cannot use a 'slack' address like this; "),
        ({"url": f"{SECRET}"}, "url", "apprise cannot use a '' address like this; "),
        ({"url_file": "/nonexistent"}, "url_file", "/nonexistent cannot be read: No such file or directory"),
        ({"command": ["true"], "words": ["run_fnished"]}, "words", "'run_fnished' is no event; did you mean"),
    ],
)
def test_what_is_no_route_is_refused_by_its_line_and_the_others_are_told(
    told: Told, shown: Any, route: dict[str, Any], line: str, why: str
) -> None:
    told.configure({"url": told.url}, route)
    number = next(
        n for n, text in enumerate(told.file.read_text().splitlines(), 1) if f" {line}:" in text and n > 5
    )
    expected = f"{told.file}:{number}: notify.routes[1].{line}: {why}"
    load_pipeline(told.file)  # a daemon, which sends nothing, does not refuse it
    assert exit_code(["config", "check", str(told.file)]) == 78
    assert shown().startswith(expected)
    if line != "words":
        assert told.run() == 78
        assert shown().startswith(expected)
        told.record()
        assert told.run() == 78
        assert told.ids() == [1]


def test_a_wrong_address_is_shown_with_the_other_problems_of_the_file(told: Told, shown: Any) -> None:
    told.configure({"url": f"foo://{SECRET}"})
    told.file.write_text(told.file.read_text().replace("- 'true'", "- no-such-program").replace("- true", ""))
    assert exit_code(["config", "check", str(told.file)]) == 78
    text = shown()
    assert "notify.routes[0].url: apprise cannot use" in text
    assert "train.command: 'no-such-program' is no program" in text


def test_the_heartbeat_is_called_while_it_is_not_broken_and_a_dead_daemon_is_told_once(
    told: Told, shown: Any
) -> None:
    told.configure({"url": told.url}, heartbeat=f"http://127.0.0.1:{told.server.port}/{SECRET}")
    assert told.run() == 0 and told.run() == 0
    assert [asked[0] for asked in told.server.asked] == ["GET"], "once in five minutes"
    holder = {"pid": 1, "purpose": TRAIN_SUPERVISOR, "since": "2026-11-28T00:00:00Z"}
    status = told.home / "runtime/status"
    status.mkdir(parents=True)
    (status / f"{TRAIN_SUPERVISOR}.json").write_text('{"text": "training"}')
    dead = {**holder, "runtime": str(told.home / "runtime")}
    told.layout.lock(TRAIN_SUPERVISOR).write_text(json.dumps(dead))
    record = read_record(told.layout.notify)
    write_record(told.layout.notify, {**record, "heartbeat": 0.0})
    assert told.run() == 0
    assert told.got == [], "it may be one that is just started again"
    assert told.run() == 0 and told.run() == 0
    assert [one["title"] for one in told.got] == [
        "error: own: broken: the train supervisor was killed and does not run"
    ]
    assert "journalctl -u 'stoker-train-supervisor@own'" in told.got[0]["message"]
    assert len(told.server.asked) == 2, "no heartbeat while it is broken"
    told.layout.lock(TRAIN_SUPERVISOR).unlink()
    told.beat = 500
    assert told.run() == 0
    assert told.got[-1]["title"].startswith("info: own: nothing runs; ")
    assert told.got[-1]["message"] == "nothing needs a hand any more"
    assert shown() == "stoker notify: notify.heartbeat: it answered HTTP 500"


def test_where_the_state_cannot_be_written_it_is_told_once_and_nothing_is_lost_or_repeated(
    told: Told, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told.configure({"url": told.url})
    assert told.run() == 0
    (told.home / "runtime").mkdir()
    full = StorageError(f"cannot write {told.layout.notify}: No space left on device; free space", ENOSPC)

    def write(path: Path, body: Any) -> None:
        if path == told.layout.notify:
            raise full
        write_record(path, body)

    monkeypatch.setattr(sent, "write_record", write)
    told.record(2)
    assert told.run() == 0 and told.run() == 0
    assert told.ids() == [1, 2]
    assert [one["title"] for one in told.got[2:]] == [
        "error: own: 1 thing needs a hand; nothing runs; start it "
        f"with `systemctl start stoker@own.target`, or `stoker run {told.file}`"
    ]
    assert told.got[2]["message"].startswith(str(full))
    assert told.progress()["places"] == {}, "the disk has what was before"
    monkeypatch.undo()
    told.record()
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(told.home / "runtime"))
    assert told.run() == 0 and told.run() == 0
    assert told.ids() == [1, 2, 3]
    assert told.got[-1]["message"] == "nothing needs a hand any more"
    assert told.progress()["places"][TRAIN_SUPERVISOR][0] == 3

    shutil.rmtree(told.home / "runtime")
    (told.home / "runtime").write_text("no directory")
    monkeypatch.setattr(sent, "write_record", write)
    told.record()
    assert told.run() == 74, "with no place to keep it nothing is sent, which the heartbeat's service tells"
    assert told.ids() == [1, 2, 3]


def test_damaged_logs_and_records_cost_only_what_is_damaged(told: Told, shown: Any) -> None:
    told.configure({"url": told.url})
    assert told.run() == 0
    told.record(3)
    log = told.layout.events(TRAIN_SUPERVISOR)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + lines[1].replace(b'"seq"', b'"s\0q') + lines[2] + b'{"torn')
    assert told.run() == 0 and told.run() == 0
    assert told.ids() == [1, 3]
    assert told.got[-1]["message"].startswith(
        "1 event left out: not sent within a day, or gone from the logs\n"
    )

    told.layout.notify.write_bytes(b"{}")  # what was sent is not known
    told.configure({"url": told.url, "most_an_hour": 1})
    assert told.run() == 0
    assert told.got[-1]["title"] == "error: own: 2 messages"
    assert len([*told.layout.quarantine.glob("record-notify.json-*/notify.json")]) == 1
    written = {**read_record(told.layout.notify), "v": 2}
    write_record(told.layout.notify, written)
    before = told.layout.notify.read_bytes()
    assert told.run() == 78
    assert shown() == (
        f"stoker: {told.layout.notify} is of format version 2, this Stoker reads version 1: it is left as it "
        "is; start the Stoker that wrote it, or a newer one"
    )
    assert told.layout.notify.read_bytes() == before


def test_a_text_is_utf8_in_a_locale_that_is_not(told: Told) -> None:
    out, argument = told.home / "out", told.home / "argument"
    told.configure({"command": ["sh", "-c", f'cat > {out}; printf %s "$1" > {argument}', "x", "{message}"]})
    assert told.run() == 0
    told.events.record(WORD, reason="zu groß: データ.parquet")
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert subprocess.run([STOKER, "notify", str(told.file)], env=environ, check=True).returncode == 0
    for file in (out, argument):
        assert "zu groß: データ.parquet" in file.read_text(encoding="utf-8")


def test_stoker_run_tells_of_the_end_too_and_the_morning_line_has_the_day(tmp_path: Path) -> None:
    out, mornings = tmp_path / "out", tmp_path / "mornings"
    script = "for n in range(1, 4):\n    print('step', n, 'loss 2.0', flush=True)\n"
    (tmp_path / "train.py").write_text(script)
    body = {
        "name": "own",
        "state": "state",
        "train": {
            "command": [sys.executable, "train.py"],
            "external": {"step": "step (?P<step>[0-9]+) loss (?P<loss>.*)"},
        },
        "metrics": {"ports": {"download": 0, "shard": 0, "train": 0}},
        "notify": {
            "routes": [
                {"command": ["sh", "-c", f"cat >> {out}"], "words": ["run_finished"]},
                {"command": ["sh", "-c", f"cat >> {mornings}"], "level": "error"},
                {"command": ["false"], "words": ["run_finished"]},
            ],
            "daily": "00:00",
        },
    }
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(body))
    command = [STOKER, "run", str(file), "--until-done"]
    ended = subprocess.run(command, capture_output=True, check=False, text=True)
    assert ended.returncode == 0, ended.stdout
    assert out.read_text().count("info: own: the run is finished\n") == 1
    assert ID.search(out.read_text())
    assert mornings.read_text().count("info: own: ") == 1
    assert ended.stdout.count("notify.routes[2]: it ended with exit code 1; it is tried each minute") == 1

    record = read_record(tmp_path / "state/notify.json")
    routes = [{**route, "day": "2026-01-01"} for route in record["routes"]]
    write_record(tmp_path / "state/notify.json", {**record, "routes": routes})
    assert exit_code(["notify", str(file)]) == 0 and exit_code(["notify", str(file)]) == 0
    title, *lines = mornings.read_text().rpartition("info: own: ")[2].splitlines()
    assert title == "all is well, run main is finished"
    assert lines[:2] == ["since yesterday: 2 steps", "launches that ended: 1 finished"]
    assert lines[2] == "in quarantine: 0, new 0"
    assert lines[3].startswith("goodput: ")
