"""The trainer's words: what is read, what is ignored, and the view they fold into."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.kit.process import ProcessId
from stoker.supervise.health.liveness import Stillness, Work
from stoker.supervise.health.trainer_protocol import MOST_BYTES, TrainerView, heard, parse
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.trainer import Trainer


def test_a_step_is_read_whole() -> None:
    said = parse(
        b"LAUNCH=a1\nPHASE=train\nSTEP=7\nTOKENS=7000\nLOSS=3.5\nLR=1e-3\nGRAD_NORM=0.5\nPOSITION=2,96\nNEW_KEY=x",
        "a1",
    )
    assert said == {
        "phase": "train", "step": 7, "tokens": 7000, "loss": 3.5,
        "lr": 1e-3, "grad_norm": 0.5, "position": (2, 96), "unknown": ("NEW_KEY",),
    }  # fmt: skip


def test_a_path_keeps_its_blanks_and_what_other_texts_end_a_line_with() -> None:
    path = "/out/two  blanks, a\ttab and a\u2028separator.pt"
    assert parse(f"LAUNCH=a\nCHECKPOINT={path}\nSTEP=7".encode(), "a") == {"checkpoint": path, "step": 7}


def test_the_figures_of_a_step_are_read_and_stay_until_told_again() -> None:
    words = b"MFU=0.41\nMEMORY_BYTES=1024\nALLOC_RETRIES=2\nDATA_WAIT_S=0.5\nSAVE_STALL_S=1.5\nMICRO_BATCH=4"
    view = heard(TrainerView("a", 0.0, 0.0), parse(b"LAUNCH=a\nSTEP=1\n" + words, "a") or {}, 1.0)
    view = heard(view, parse(b"LAUNCH=a\nSTEP=2\nMFU=nan\nMICRO_BATCH=-2", "a") or {}, 2.0)
    assert (view.mfu, view.memory_bytes, view.alloc_retries) == (0.41, 1024, 2)
    assert (view.data_wait_s, view.save_stall_s, view.micro_batch) == (0.5, 1.5, 4)


def test_words_of_another_launch_are_dropped() -> None:
    assert parse(b"LAUNCH=a1\nSTEP=7", "a2") is None
    assert parse(b"STEP=7", "a2") is None


def test_a_huge_datagram_and_one_that_is_no_text_are_dropped() -> None:
    assert parse(b"LAUNCH=a\nERROR=" + b"x" * MOST_BYTES, "a") is None
    assert parse(b"LAUNCH=a\n\xff\xfe", "a") is None


def test_a_value_that_makes_no_sense_is_as_if_not_said() -> None:
    assert parse(b"LAUNCH=a\nPHASE=dance\nSTEP=-1\nLOSS=x\nPOSITION=3\nTOKENS=1e6\nERROR=\nLR=", "a") == {}


@pytest.mark.parametrize("said", [b"LOSS=nan", b"LOSS=2\nGRAD_NORM=inf"])
def test_a_loss_or_norm_that_is_not_finite_is_counted_and_never_shown(said: bytes) -> None:
    view = heard(TrainerView("a", 0.0, 0.0), parse(b"LAUNCH=a\nSTEP=1\n" + said, "a") or {}, 1.0)
    view = heard(view, parse(b"LAUNCH=a\nSTEP=2\n" + said, "a") or {}, 2.0)
    assert view.nonfinite == 2 and view.grad_norm is None


def test_a_save_that_failed_or_was_made_in_place_is_told_once() -> None:
    view = TrainerView("a", 0.0, 0.0)
    launch = Launch("a", 0, None, 0, Path("socket"))
    trainer = Trainer(launch, ProcessId(1, 1), view, Stillness(0.0, 0.0), sample_at=0.0)
    said = [b"LAUNCH=a\nPHASE=train\nSAVE_FAILED=no room", b"LAUNCH=a\nPHASE=train\nSAVE_IN_PLACE=no memory"]
    after = trainer.after_words(said, 1.0)
    assert (after.saves_failed, after.saves_in_place) == (("no room",), ("no memory",))
    later = after.after_words([b"LAUNCH=a\nPHASE=train\nSTEP=1"], 2.0)
    assert (later.saves_failed, later.saves_in_place) == ((), ())


def test_numerics_are_told_with_their_step_and_kept_until_they_are_recorded() -> None:
    launch = Launch("a", 0, None, 5, Path("socket"))
    trainer = Trainer(launch, ProcessId(1, 1), TrainerView("a", 0.0, 0.0), Stillness(0.0, 0.0), sample_at=0.0)
    said = [b'LAUNCH=a\nPHASE=train\nSTEP=0\nNUMERICS={"micro_batch":8}', b"LAUNCH=a\nNUMERICS=[8]"]
    after = trainer.after_words(said, 1.0).after_words([b'LAUNCH=a\nSTEP=7\nNUMERICS={"x":null}'], 2.0)
    assert after.numerics == ((0, {"micro_batch": 8}), (7, {"x": None}))


@given(st.binary(max_size=300))
def test_no_datagram_breaks_the_reader(datagram: bytes) -> None:
    parse(b"LAUNCH=a\n" + datagram, "a")
    parse(datagram, "a")


def test_only_a_new_step_or_phase_counts_as_movement() -> None:
    view = TrainerView("a", 10.0, 10.0)
    for said, now in [(b"PHASE=train", 11.0), (b"STEP=1\nLOSS=4", 12.0), (b"STEP=1", 13.0), (b"", 14.0)]:
        word = parse(b"LAUNCH=a\n" + said, "a")
        assert word is not None
        view = heard(view, word, now)
    assert (view.moved_at, view.heard_at, view.loss, view.phase) == (12.0, 14.0, 4.0, "train")


def test_housekeeping_is_stillness_and_work_is_not() -> None:
    idle = Stillness(0.0, 0.0).sampled(Work(5.0, 100), 1.0).sampled(Work(5.04, 100), 11.0)
    assert 11.0 - idle.worked_at == 10.0
    reads = idle.sampled(Work(5.04, 164), 21.0)
    assert reads.worked_at == 21.0
    assert reads.sampled(Work(6.0, 164), 31.0).worked_at == 31.0


def test_work_is_read_from_proc_even_behind_an_odd_name(tmp_path: Path) -> None:
    from stoker.supervise.health.liveness import work_of

    (tmp_path / "77").mkdir()
    ticks = os.sysconf("SC_CLK_TCK")
    fields = ["S", "1", *["0"] * 9, str(ticks), str(2 * ticks), *["0"] * 10]
    (tmp_path / "77" / "stat").write_text("77 (a) b (c) " + " ".join(fields))
    (tmp_path / "77" / "io").write_text("rchar: 5\nwchar: 6\nsyscr: 1\n")
    assert work_of([77, 78], proc=tmp_path) == Work(cpu_s=3.0, moved_bytes=11)
