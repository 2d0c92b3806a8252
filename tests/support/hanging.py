"""Trainers and workers that stand still in ways of their own, each time a file asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from support.sites import write_site

# Runs at the start of every Python that finds it on its path. A trainer holds the GIL for ever in a phase
# that a file `hang-<phase>` names, or sleeps so many seconds in one that `pause-<phase>` names; a proof
# worker stops itself at `stop-proof`, and cannot begin while there is a `break-proof`. The others ask once.
_SITE = """
import ctypes, os, signal, sys, time
HERE = os.path.dirname(__file__)

def asked(word):
    try:
        path = os.path.join(HERE, word)
        text = open(path).read()
        os.unlink(path)
    except FileNotFoundError:
        return None
    return text

def hold_the_gil():
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    while True:
        libc.pthread_mutex_lock(mutex)  # the second time for ever, whatever signal comes

module = sys.orig_argv[1:4]
if "stoker.training.trainer" in module:
    from stoker.training.protocol import Protocol
    say = Protocol.say
    def halting(protocol, phase=None, /, **words):
        for forced in ("compile", "wait-data"):
            if phase == "train" and any(os.path.exists(os.path.join(HERE, f"{how}-{forced}"))
                                        for how in ("hang", "pause")):
                halting(protocol, forced)
        say(protocol, phase, **words)
        if asked(f"hang-{protocol.phase}") is not None:
            hold_the_gil()
        if (seconds := asked(f"pause-{protocol.phase}")) is not None:
            time.sleep(float(seconds))
    Protocol.say = halting
if "stoker.checkpoints.proof_worker" in module:
    if asked("stop-proof") is not None:
        os.kill(os.getpid(), signal.SIGSTOP)
    if os.path.exists(os.path.join(HERE, "break-proof")):
        sys.modules["hashlib"] = None
if "stokerd.train_supervisor" in " ".join(sys.orig_argv):
    from stokerd.supervision.jobs import ACTIVITIES
    for activity in ACTIVITIES.values():
        if activity.pool == "local":
            object.__setattr__(activity, "silent_s", 3.0)
"""


class Hanging:
    """A directory with such files; `environ` is for what is to obey them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        write_site(directory, _SITE)
        self.environ = {"PYTHONPATH": str(directory)}

    def ask(self, *words: str, text: object = "") -> None:
        for word in words:
            (self.directory / word).write_text(str(text))

    def take_back(self, word: str) -> None:
        (self.directory / word).unlink()

    def is_asked(self, words: Iterable[str]) -> list[str]:
        """The words that nobody has obeyed yet."""
        return [word for word in words if (self.directory / word).exists()]
