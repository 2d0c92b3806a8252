"""A guarded launch that a process goes on with after its execv."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from stoker.kit.loop import Waiter
from stoker.kit.process import ProcessId
from stoker.supervise.health import guarded
from stoker.supervise.health.exits import GuardedEnd
from stoker.supervise.health.guarded import GuardedTrainer
from support.waiting import wait_until


def test_what_the_guard_has_reported_and_half_a_line_of_it_are_not_lost_nor_words_of_a_flood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "MOST_DATAGRAMS", 2)
    path = tmp_path / "words"
    words = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    words.bind(str(path))
    reports, guards = os.pipe2(os.O_NONBLOCK)
    guard = subprocess.Popen(["sleep", "600"])
    with contextlib.closing(Waiter()) as waiter, contextlib.ExitStack() as ending:
        ending.callback(guard.kill)
        of_launch = {"notify_socket": path, "waiter": waiter}
        before = GuardedTrainer(guard, lock=None, reports=reports, words=words, **of_launch)
        os.write(guards, b'{"started":7}\n{"exited":{"code":76}}\n{"emp')
        assert before.poll() is None
        body = json.loads(json.dumps(before.handed_over()))
        descriptors = {name: os.dup(one) for name, one in before.descriptors.items()}
        after = GuardedTrainer.adopted(ProcessId.of(guard.pid), body, descriptors, **of_launch)
        os.write(guards, b'ty":true}\n')
        for word in (b"PHASE=train", b"STEP=1", b"STEP=2"):
            words.sendto(word, str(path))
        assert after.drain() == [b"PHASE=train", b"STEP=1"], "the loop has other things to do"
        assert after.drain() == [b"STEP=2"]
        assert after.poll() is None
        after.kill()
        assert wait_until(after.poll, what="the guard's end") == GuardedEnd(76, None)
        after.close()
        guard.wait()  # it is reaped
    os.close(guards)
    os.close(reports)
    words.close()
