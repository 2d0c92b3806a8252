"""The crash-state checker: does a durable path survive a power cut at any moment?

How to put a write path through it (from any test)::

    from crash import acknowledge, check_crashes

    def prepare(root):              # what is on disk, and durable, before: optional
        write_record(root / "a.json", {"v": 1, "n": 0})

    def write(root):                # the path under test: run once, in this process, and recorded
        write_record(root / "a.json", {"v": 1, "n": 1})
        acknowledge(1)              # optional: from here on somebody relies on it

    def recover(root):              # what a restart does
        sweep_temporaries(root)

    def invariant(root, crash):     # asserts; runs after recover, on every state a crash may leave
        n = read_record(root / "a.json")["n"]
        assert n == 1 if crash.complete else n in (0, 1)

    check_crashes(write, recover, invariant, prepare=prepare)

`crash.complete` is true for crashes after `write` returned, `crash.acknowledged` holds what was
acknowledged before. Every state is recovered twice, since the machine may fall over again. A failing state
raises CrashFound, which tells the operations done and those lost, and chains the invariant's own error.

What counts: see crash.states for the model of the disk, crash.recorder for what is seen. In short: call
`os` functions as attributes of `os`, in this process; writes made behind them (open(), C libraries) are
noticed at the next recorded sync or rename, syncs made behind them are not.
"""

from crash.checker import Crash, CrashFound, CrashReport, check_crashes
from crash.recorder import acknowledge

__all__ = ["Crash", "CrashFound", "CrashReport", "acknowledge", "check_crashes"]
