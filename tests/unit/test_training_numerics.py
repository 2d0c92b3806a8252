"""What decides the bits of a step: what a new run gets, what a run keeps, what its operator may change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.store.errors import ConfigError, DataError
from stoker.store.record import write_record
from stoker.supervise.run.numerics_record import LEGACY, differences, is_known, of_checkpoint, was_halved
from stoker.training import compilers, numerics
from stoker.training.launch import Launch, read_launch
from stoker.training.numerics import resolve
from support.trainer_run import TrainerRun

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
CARD = {
    **{"device": "cuda", "card": "H100", "cuda": "13.0", "cpu": "AVX2", "torch": "2.13.0"},
    "compiler": "triton 3.6",
}


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    run = TrainerRun(tmp_path)
    write_record(run.layout.launch, run.record("launch-1") | {"compile": "auto"})
    return read_launch({"STOKER_RUN_DIR": str(run.layout.root)})


@pytest.fixture(autouse=True)
def one_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one kind of card, so that what is chosen on it can be seen without."""
    here, lacks = numerics.machine, numerics.lacks_to_compile
    monkeypatch.setattr(numerics, "machine", lambda *of: CARD if of[0] == CUDA else here(*of))
    monkeypatch.setattr(
        numerics, "lacks_to_compile", lambda device: None if device == CUDA else lacks(device)
    )


def test_a_new_run_takes_what_is_best_on_its_device(launch: Launch) -> None:
    on_cpu, on_cuda = resolve(launch, CPU), resolve(launch, CUDA)
    assert (on_cpu.compile, on_cpu.precision, on_cpu.device) == ("none", "float32", "cpu")
    assert (on_cuda.compile, on_cuda.precision, on_cuda.card) == ("blocks", "bfloat16", "H100")
    assert on_cpu.micro_batch == launch.global_batch and on_cpu.micro_batch_asked is None
    assert on_cpu.cpu == torch.backends.cpu.get_cpu_capability() and is_known(on_cpu.body())


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_a_run_keeps_its_own_where_a_newer_stoker_would_choose_others(
    launch: Launch, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = replace(resolve(launch, device), micro_batch=2, loss_chunk=3)
    here = numerics.kernels

    def newer(*of: Any) -> dict[str, tuple[Any, ...]]:
        return {name: ("better", *known) for name, known in here(*of).items()}

    monkeypatch.setattr(numerics, "kernels", newer)
    for chunk in ("CPU_LOSS_CHUNK", "CUDA_LOSS_CHUNK"):
        monkeypatch.setattr(numerics, chunk, 7)
    new = resolve(launch, device)
    assert {new.optimizer, new.loss, new.attention, new.compile} == {"better"} and new.loss_chunk == 7
    assert resolve(replace(launch, numerics=before.body()), device) == before


def test_a_run_keeps_its_precision_on_another_device_and_loses_a_kernel_that_is_not_there(
    launch: Launch,
) -> None:
    masked = replace(launch, model={**launch.model, "document_mask": True}, precision="auto")
    before = resolve(masked, CUDA)
    assert before.attention == "varlen_documents"
    after = resolve(replace(masked, numerics=before.body()), CPU)
    assert (after.precision, after.compile, after.attention) == ("bfloat16", "blocks", "sdpa_documents")
    assert resolve(replace(masked, precision="float32"), CUDA).attention == "sdpa_documents"
    names = {change.split(":")[0] for change in differences(before.body(), after.body())}
    assert names >= {"attention", "device", "card", "cuda"} and "precision" not in names


@pytest.mark.parametrize(
    ("asked", "kept", "field", "expected"),
    [
        ({}, {"compile": "blocks"}, "compile", "blocks"),
        ({"compile": "none"}, {"compile": "blocks"}, "compile", "none"),
        ({"recompute": "blocks"}, {"recompute": "none"}, "recompute", "blocks"),
        ({"precision": "bfloat16"}, {"precision": "float32"}, "precision", "bfloat16"),
        ({}, {"micro_batch": 2}, "micro_batch", 2),
        ({"micro_batch": 4}, {"micro_batch": 2}, "micro_batch", 4),
        # 8 did not fit and was halved twice: the same wish does not undo that, another one does.
        ({"micro_batch": 8}, {"micro_batch": 2, "micro_batch_asked": 8}, "micro_batch", 2),
        ({"micro_batch": 4}, {"micro_batch": 2, "micro_batch_asked": 8}, "micro_batch", 4),
        ({}, {"micro_batch": 2, "micro_batch_asked": 8}, "micro_batch_asked", None),
    ],
)
def test_what_the_operator_asks_for_counts_before_what_the_run_had(
    launch: Launch, asked: dict[str, Any], kept: dict[str, Any], field: str, expected: Any
) -> None:
    own = {**resolve(launch, CPU).body(), **kept}
    assert getattr(resolve(replace(launch, numerics=own, **asked), CPU), field) == expected


def test_a_machine_without_a_compiler_refuses_a_wish_to_compile_and_does_without_otherwise(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = resolve(replace(launch, compile="blocks"), CPU)
    assert compiled.compiler is not None and "++" in compiled.compiler
    assert resolve(launch, CPU).compiler is None
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="lacks the C\\+\\+ compiler no-such-compiler: install it"):
        resolve(replace(launch, compile="blocks"), CPU)
    assert resolve(replace(launch, numerics=compiled.body()), CPU).compile == "none"
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(numerics, "lacks_to_compile", compilers.lacks_to_compile)
    assert resolve(launch, CUDA).compile == "none"  # there is no triton for a CPU
    assert "because this machine lacks the package triton" in capsys.readouterr().err


def test_a_replay_takes_the_recorded_numerics_or_names_what_differs(launch: Launch) -> None:
    recorded = replace(resolve(launch, CPU), micro_batch=2, recompute="blocks", tf32=False)
    asked = {"micro_batch": 8, "compile": "none", "is_replay": True}
    assert resolve(replace(launch, numerics=recorded.body(), **asked), CPU) == recorded
    for change in ({"torch": "1.0"}, {"cpu": "other"}, {"optimizer": "gone"}, {"card": "H100"}):
        with pytest.raises(ConfigError, match=f"{next(iter(change))}: "):
            resolve(replace(launch, numerics={**recorded.body(), **change}, **asked), CPU)


def test_only_what_both_have_and_what_decides_bits_is_a_difference(launch: Launch) -> None:
    one = resolve(launch, CPU).body()
    assert differences(one, {**one, "micro_batch_asked": 8, "later": 1}) == []
    changed = differences(one, {**one, "card": "H100", "micro_batch": 1})
    assert changed == ["micro_batch: 8 -> 1", "card: none -> H100"]


def test_only_a_trainer_halves_an_operator_asks_for_less() -> None:
    before = {"micro_batch": 8, "micro_batch_asked": 8}
    assert was_halved(before, {"micro_batch": 4, "micro_batch_asked": 8})
    assert not was_halved(before, {"micro_batch": 4, "micro_batch_asked": 4})
    assert not was_halved(before, before)
    assert not was_halved({}, before), "a run from before numerics"


def test_a_checkpoint_tells_its_numerics_and_an_earlier_one_what_it_knows(tmp_path: Path) -> None:
    def checkpoint(body: Any) -> Path:
        (tmp_path / "trainer.json").write_text(json.dumps(body))
        return tmp_path

    assert of_checkpoint(checkpoint({"numerics": {"micro_batch": 3}})) == {"micro_batch": 3}
    compute = {"device": "cpu", "precision": "float32", "threads": 2, "micro_batch": 4}
    earlier = of_checkpoint(checkpoint({"compute": compute, "versions": {"torch": "2.5.0"}}))
    known = {"device": "cpu", "precision": "float32", "micro_batch": 4, "torch": "2.5.0"}
    assert earlier == {**LEGACY, **known} and not is_known(earlier)
    with pytest.raises(DataError, match=r"trainer\.json"):
        of_checkpoint(checkpoint([1]))


def test_a_run_from_before_numerics_goes_on_with_the_kernels_of_now(launch: Launch) -> None:
    own = {**LEGACY, "device": "cpu", "precision": "float32", "micro_batch": 4, "torch": "2.5.0"}
    now = resolve(replace(launch, numerics=own), CPU)
    assert now.micro_batch == 4 and is_known(now.body())
    assert now.optimizer == resolve(launch, CPU).optimizer
