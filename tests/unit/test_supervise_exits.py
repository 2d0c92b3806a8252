"""The class of a launch's end, by how its process ended and by the evidence around it: a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stoker.supervise.health.evidence import Evidence, free_bytes
from stoker.supervise.health.exits import (
    FULL_BYTES,
    TOLD_LINES,
    Exit,
    ExitClass,
    GuardedEnd,
    Meaning,
    classify,
    meaning_of_external,
)

LOST = Evidence(phase="train", step=40, last_step=80, sealed_step=30)  # steps that no checkpoint holds
KEPT = replace(LOST, sealed_step=40)
OOM, XID = replace(LOST, oom_kills=1), replace(LOST, xids=(79,))
FULL, ROOM = replace(LOST, free_bytes=FULL_BYTES - 1), replace(LOST, free_bytes=FULL_BYTES)
DONE = replace(LOST, step=80, sealed_step=80)
TOLD_LATE = replace(LOST, step=79, sealed_step=80)  # its last words were lost


def judged(
    code: int | None,
    signum: int | None,
    seen: Evidence = LOST,
    words: str | None = None,
    **how: bool,
) -> Exit:
    asked = how.pop("is_asked", False)
    return classify(GuardedEnd(code, signum), seen, is_asked=asked, is_hung=False, last_words=words, **how)


@pytest.mark.parametrize(
    ("code", "signum", "seen", "words", "kind"),
    [
        (0, None, DONE, None, "finished"),
        (0, None, TOLD_LATE, None, "finished"),
        (0, None, replace(KEPT, ending="early_stop"), None, "finished"),
        (0, None, replace(KEPT, ending="data_exhausted"), None, "finished"),
        (0, None, KEPT, None, "finished_short"),
        (0, None, replace(KEPT, ending="stopped"), None, "finished_short"),
        (65, None, LOST, None, "bad_data"),
        (None, 7, LOST, None, "bad_data"),
        (71, None, LOST, "memory ran out: CUDA out of memory", "gpu_memory"),
        (71, None, LOST, "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate", "host_memory"),
        (71, None, LOST, "MemoryError: ", "host_memory"),
        (71, None, LOST, "OutOfMemoryError: CUDA out of memory. Tried to allocate", "gpu_memory"),
        (74, None, LOST, None, "storage"),
        (75, None, LOST, "LockHeld: another trainer", "try_again"),
        (75, None, LOST, "AcceleratorError: CUDA error: unspecified launch failure", "device_lost"),
        (75, None, XID, None, "device_lost"),
        (76, None, LOST, None, "non_finite"),
        (78, None, LOST, None, "wrong_config"),
        (1, None, LOST, None, "crashed"),
        (1, None, ROOM, None, "crashed"),
        (1, None, LOST, "CUDA error: device-side assert triggered", "crashed"),  # its own mistake
        (1, None, LOST, "RuntimeError: CUDA error: uncorrectable ECC error encountered", "device_lost"),
        (1, None, LOST, "OSError: [Errno 28] No space left on device", "storage"),
        (1, None, replace(LOST, lines=("Traceback", "torch.OutOfMemoryError: CUDA out of memory.")), None,
         "gpu_memory"),
        (1, None, replace(LOST, lines=("CUDA out of memory", *["a line"] * TOLD_LINES)), None, "crashed"),
        (65, None, replace(LOST, lines=("MemoryError: ",)), None, "bad_data"),
        (1, None, FULL, None, "storage"),
        (1, None, OOM, None, "host_memory"),  # a launcher whose rank the kernel killed
        (1, None, XID, None, "device_lost"),
        (None, 6, XID, None, "device_lost"),  # NCCL's watchdog aborts
        (65, None, replace(LOST, oom_kills=1, xids=(79,), free_bytes=0), None, "bad_data"),
        (None, 9, OOM, None, "host_memory"),
        (137, None, OOM, None, "host_memory"),
        (None, 9, LOST, None, "killed"),  # an operator's
        (None, 9, replace(OOM, peak_bytes=3 << 29, headroom_after_bytes=3 << 30), None, "host_memory"),
        (None, 9, replace(OOM, peak_bytes=1 << 29, headroom_after_bytes=3 << 30), None, "killed"),
        (None, 15, replace(OOM, xids=(79,), free_bytes=0), None, "killed"),
        (None, 11, LOST, None, "crashed"),
        (None, None, OOM, None, "guard_lost"),
    ],
)  # fmt: skip
def test_every_end_that_nobody_asked_for_has_its_class(
    code: int | None, signum: int | None, seen: Evidence, words: str | None, kind: str
) -> None:
    assert judged(code, signum, seen, words).kind == kind


RAISED = ("Traceback (most recent call last):", '  File "t.py", line 3, in <module>', "    x = 1 / 0",
          "        ~~^~~", "ZeroDivisionError: division by zero")  # fmt: skip
CUDA_HINTS = ("CUDA kernel errors might be asynchronously reported at some other API call.",
              "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
              "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.")  # fmt: skip
TORCHRUN = ("=" * 60, "train.py FAILED", "-" * 60, "Failures:", "  <NO_OTHER_FAILURES>", "-" * 60,
            "Root Cause (first observed failure):", "[0]:", "  exitcode  : 1 (pid: 7)", "=" * 60)  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (("step 1",), "finished"),
        (("step 1", *RAISED), "finished_short"),
        ((*RAISED, "During handling of the above exception, another exception occurred:", *RAISED),
         "finished_short"),
        (tuple(f"[rank1]: {line}" for line in RAISED), "finished_short"),
        ((*RAISED[:-1], "KeyboardInterrupt"), "finished_short"),
        ((*RAISED[1:-1], "SyntaxError: invalid syntax"), "finished_short"),
        ((*RAISED[:-1], "torch.AcceleratorError: CUDA error: device-side assert", *CUDA_HINTS),
         "finished_short"),
        ((*RAISED[:-1], "torch.distributed.ChildFailedError:", *TORCHRUN), "finished_short"),
        ((*RAISED, "wandb: Synced 5 files", "[rank0]:[W1120 ProcessGroup.cpp:1] destroy it"),
         "finished_short"),
        ((*RAISED, "no upload, then; trained"), "finished"),  # caught
        ((*RAISED, "step 2", "ValueError: of no trace"), "finished"),
        (("  indented", "Done"), "finished"),
        (("ZeroDivisionError: division by zero",), "finished"),
    ],
)  # fmt: skip
def test_exit_code_0_after_an_error_that_nobody_caught_is_that_of_a_pipe(
    lines: tuple[str, ...], kind: str
) -> None:
    seen = Evidence(phase="train", step=7, lines=lines)
    found = judged(0, None, seen)
    assert found.kind == kind
    assert ("bash -o pipefail -c" in found.detail) == (kind == "finished_short")
    done = (replace(seen, last_step=7), replace(seen, ending="told"))  # all steps are made, or so it says
    assert [judged(0, None, one).kind for one in done] == ["finished"] * 2


@pytest.mark.parametrize(
    ("code", "signum", "seen", "kind"),
    [
        (0, None, KEPT, "stopped_as_asked"),
        (0, None, LOST, "stopped_as_asked"),
        (143, None, KEPT, "stopped_as_asked"),
        (1, None, KEPT, "stopped_as_asked"),  # torchrun's, although its ranks saved
        (None, 15, KEPT, "stopped_as_asked"),
        (143, None, Evidence(), "stopped_as_asked"),  # before its first step
        (143, None, LOST, "crashed"),
        (None, 9, LOST, "killed"),
        (65, None, LOST, "bad_data"),
        (None, None, LOST, "guard_lost"),
    ],
)
def test_a_stop_is_told_by_the_sealed_checkpoint(
    code: int | None, signum: int | None, seen: Evidence, kind: str
) -> None:
    assert judged(code, signum, seen, is_asked=True).kind == kind
    hung = classify(GuardedEnd(code, signum), seen, is_asked=True, is_hung=True)
    assert hung.kind is ExitClass.HUNG


def test_a_trainer_of_the_users_own_that_forks_away_has_not_finished() -> None:
    def kind(seen: Evidence, *, left: int = 1, meaning: Meaning | None = meaning_of_external) -> str:
        end = GuardedEnd(0, None, left=left)
        return classify(end, seen, is_asked=False, is_hung=False, meaning=meaning).kind

    assert kind(Evidence(step=40, sealed_step=40)) == "crashed"
    assert kind(Evidence(), left=0) == kind(Evidence(), meaning=None) == "finished"
    assert kind(Evidence(phase="train", step=41, sealed_step=40)) == "finished"  # a helper outlives it
    assert kind(Evidence(step=40, sealed_step=50)) == "finished"  # its steps cannot be read


def test_the_detail_names_the_signal_the_evidence_and_the_last_words() -> None:
    assert judged(None, 9).detail == "killed by SIGKILL"
    assert judged(None, 9, OOM).detail == "killed by SIGKILL, the kernel's OOM killer was at work"
    assert judged(1, None, XID, "no card").detail == "exit code 1, after Xid 79: no card"
    assert "step 40 of 80" in judged(0, None, KEPT).detail


@pytest.mark.parametrize(
    ("code", "signum", "words", "doubts"),
    [
        (65, None, "a set is bad", True),
        (76, None, "the loss of step 7 is nan", True),
        (None, 7, None, True),
        (74, None, "OSError: [Errno 5] Input/output error: '/hot/t.bin'", True),
        (74, None, "StorageError: cannot write: No space left on device", False),
        (1, None, None, False),
    ],
)
def test_only_data_that_could_not_be_read_is_proven_before_the_next_launch(
    code: int | None, signum: int | None, words: str | None, doubts: bool
) -> None:
    assert judged(code, signum, words=words).doubts_data is doubts


def test_evidence_tells_what_says_something() -> None:
    told = replace(OOM, headroom_bytes=1 << 30, free_bytes=0, lines=("long",))
    assert told.body() == {
        "phase": "train",
        "step": 40,
        "last_step": 80,
        "sealed_step": 30,
        "oom_kills": 1,
        "headroom_bytes": 1 << 30,
        "free_bytes": 0,
    }
    elsewhere = replace(OOM, peak_bytes=1 << 20, headroom_after_bytes=1 << 30)
    assert "oom_kills" not in elsewhere.body(), "the counter is the machine's"


def test_room_on_a_disk_that_cannot_be_asked_is_not_known(tmp_path: Path) -> None:
    assert (free_bytes(tmp_path) or 0) > 0
    assert free_bytes(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("code", "signum", "seen", "is_asked", "kind"),
    [
        (None, 15, LOST, True, "stopped_as_asked"),
        (143, None, LOST, True, "stopped_as_asked"),
        (1, None, LOST, True, "stopped_as_asked"),  # torchrun's, whatever its workers did
        (None, 9, LOST, True, "killed"),  # after its stop time
        (None, 9, KEPT, True, "stopped_as_asked"),
        (None, 15, LOST, False, "killed"),
        (1, None, LOST, False, "crashed"),
        (2, None, LOST, False, "crashed"),  # argparse
        (78, None, LOST, False, "wrong_config"),
    ],
)
def test_a_trainer_of_the_users_own_may_die_of_the_stop_that_it_was_asked_for(
    code: int | None, signum: int | None, seen: Evidence, is_asked: bool, kind: str
) -> None:
    end = judged(code, signum, seen, is_asked=is_asked, meaning=meaning_of_external)
    assert end.kind == kind
    assert end.is_blameless is (kind == "stopped_as_asked")


def test_a_command_that_cannot_be_started_is_named_with_the_keys_to_change() -> None:
    said = replace(LOST, lines=("a line", "stoker.kit.exec: cannot start nosuch: No such file or directory"))
    why = "cannot start nosuch: No such file or directory; train.command names the program"
    assert judged(127, None, said).detail.startswith(f"exit code 127: {why}")
    assert judged(1, None, said).detail == "exit code 1"
