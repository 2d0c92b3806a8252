"""Memory that runs out: the micro-batch is halved, and the step is the one of the smaller micro-batch."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stoker.store.errors import NoMemory, Transient
from stoker.training.evaluate import evaluate
from stoker.training.model.transformer import Model, initialize
from stoker.training.steps import memory, trial
from stoker.training.steps.device import Compute, check_card
from stoker.training.steps.memory import Pressure, while_it_fits, windows_a_pass
from stoker.training.steps.optimizer import AdamW
from stoker.training.steps.step import Stepper, add_gradients
from stoker.training.steps.trial import fitting, pass_bytes
from support import models
from support.trainer_run import SEQ_LEN, Inbox, TrainerRun

CPU = Compute(torch.device("cpu"), bf16=False)
SHAPE = replace(models.SHAPE, vocab_size=40, seq_len=12, layers=1, heads=2, tie_embeddings=True)


def too_much() -> None:
    """Ask for more than there is, which torch refuses in its own words."""
    torch.empty(1 << 46, dtype=torch.uint8)


class Hungry(Model):
    """A model that fits `most` windows into memory, in its second pass and all later ones."""

    most, passes = 100, 0

    def loss_sum(self, windows: torch.Tensor) -> torch.Tensor:
        self._pass(windows)
        return super().loss_sum(windows)

    def loss_by_target(self, windows: torch.Tensor) -> torch.Tensor:
        self._pass(windows)
        return super().loss_by_target(windows)

    def _pass(self, windows: torch.Tensor) -> None:
        self.passes += 1
        if self.passes > 1 and len(windows) > self.most:
            too_much()


def hungry(most: int) -> Hungry:
    model = Hungry(SHAPE)
    initialize(model, 1)
    model.most = most
    return model


def stepper_of(model: Model, before_update: Callable[[], None] = lambda: None) -> Stepper:
    optimizer = AdamW(model.named_parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    return Stepper(model, optimizer, CPU, clip=1.0, before_update=before_update)


def test_it_halves_until_it_fits_and_says_each_half() -> None:
    tried: list[int] = []

    def make(micro_batch: int) -> str:
        tried.append(micro_batch)
        if micro_batch > 2:
            too_much()
        return "made"

    halves: list[int] = []
    assert while_it_fits(make, 11, halves.append) == "made"
    assert (tried, halves) == ([11, 5, 2], [5, 2])


@pytest.mark.parametrize(
    ("fails", "error"), [(too_much, NoMemory), (lambda: {}["a"], KeyError)], ids=["at one", "otherwise"]
)
def test_what_a_half_cannot_mend_is_not_repeated(fails: Callable[[], None], error: type[Exception]) -> None:
    halves: list[int] = []
    with pytest.raises(error):
        while_it_fits(lambda micro_batch: fails(), 1, halves.append)
    assert halves == []


def test_a_step_done_again_with_half_is_the_step_of_that_half() -> None:
    windows = torch.randint(0, 40, (8, 13), generator=torch.Generator().manual_seed(2))

    def step(model: Model, micro_batch: int) -> None:
        stepper = stepper_of(model)
        while_it_fits(
            lambda size: stepper.begin(torch.split(windows, size), 0.1),
            micro_batch,
            lambda size: model.zero_grad(),
        )

    starved, small = hungry(most=2), hungry(most=100)
    step(starved, 4)  # the second pass of 4 fails, with the gradients of the first added up
    step(small, 2)
    assert starved.passes == 2 + 4
    for mine, other in zip(starved.parameters(), small.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_an_update_that_runs_out_of_memory_is_never_made_twice() -> None:
    model = hungry(most=100)
    stepper = stepper_of(model, before_update=too_much)
    windows = torch.zeros((8, 13), dtype=torch.int64)
    with pytest.raises(NoMemory, match="optimizer's step"):
        while_it_fits(lambda size: stepper.begin(torch.split(windows, size), 0.1), 4)
    assert model.passes == 2


def test_a_result_that_runs_out_of_memory_is_told_before_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = torch.randint(0, 40, (8, 13), generator=torch.Generator().manual_seed(2))
    model, plain = hungry(most=100), hungry(most=100)
    stepper_of(plain).begin(torch.split(windows, 2), 0.1)
    stepper, results = stepper_of(model), [too_much, lambda: None]
    monkeypatch.setattr("stoker.training.steps.step.Begun", lambda *_: results.pop(0)())
    while_it_fits(
        lambda size: stepper.begin(torch.split(windows, size), 0.1), 4, lambda size: model.zero_grad()
    )
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


def test_an_evaluation_halves_for_itself_and_reads_every_window_once() -> None:
    windows = np.random.default_rng(1).integers(0, 40, (11, 13)).astype("<u2")
    starved = hungry(most=2)
    found = evaluate(starved, windows, compute=CPU, micro_batch=4)
    assert starved.passes == 1 + 1 + 4  # of 4 windows, of 4 that do not fit, then of 2
    plain = evaluate(hungry(most=100), windows, compute=CPU, micro_batch=11)
    assert found is not None and plain is not None
    assert found.loss == pytest.approx(plain.loss, rel=1e-6)
    assert found.stderr == pytest.approx(plain.stderr, rel=1e-6)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory so short that a pass of all 8 windows has to be tried."""
    monkeypatch.setattr(trial, "spare_bytes", lambda: pass_bytes(SHAPE, 8 * 12))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("most", "found"), [(100, 8), (3, 2), (1, 1)])
def test_a_trial_finds_the_largest_divisor_that_fits_and_leaves_no_trace(most: int, found: int) -> None:
    model = hungry(most)
    model.passes = 1  # all passes of the trial count
    optimizer = AdamW(model.named_parameters(), betas=(0.9, 0.95), weight_decay=0.1)

    def state() -> list[torch.Tensor]:
        tensors = [*model.parameters(), *optimizer.tensors().values(), torch.get_rng_state()]
        return [tensor.detach().clone() for tensor in tensors]

    before = state()
    assert fitting(model, 8, global_batch=8, length=12, compute=CPU) == found
    assert all(torch.equal(old, new) for old, new in zip(before, state(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.usefixtures("short")
def test_a_trial_makes_the_second_pass_too_which_finds_gradients_there() -> None:
    assert fitting(hungry(most=2), 4, global_batch=8, length=12, compute=CPU) == 2  # the first pass fits


@pytest.mark.usefixtures("short")
def test_a_model_of_which_no_window_fits_has_no_memory() -> None:
    model = hungry(most=0)
    model.passes = 1
    with pytest.raises(NoMemory, match=r"12 tokens.*DefaultCPUAllocator"):  # whose memory: exits.py asks
        fitting(model, 8, global_batch=8, length=12, compute=CPU)


def test_a_card_keeps_some_memory_free_unless_a_single_window_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = torch.device("meta")
    monkeypatch.setattr(trial, "add_gradients", lambda *_: None)  # every pass fits
    for free, found in ((5, 8), (4, 1)):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda _, free=free: (free, 100))
        assert (
            fitting(hungry(100), 8, global_batch=8, length=12, compute=Compute(device, bf16=False)) == found
        )


def test_a_cpu_tries_nothing_where_memory_is_plenty_and_nothing_that_is_plainly_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for spare, passes, found in ((1 << 40, 0, 8), (pass_bytes(SHAPE, 4 * 12), 2, 4), (0, 2, 1)):
        monkeypatch.setattr(trial, "spare_bytes", lambda spare=spare: spare)
        model = hungry(most=100)
        assert fitting(model, 8, global_batch=8, length=12, compute=CPU) == found
        assert model.passes == passes


def test_memory_to_spare_is_bounded_by_the_processs_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = trial.spare_bytes()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (used + (64 << 20), resource.RLIM_INFINITY))
    assert 0 <= trial.spare_bytes() <= 64 << 20 < unlimited


def test_a_run_of_a_gpu_never_goes_on_without_one() -> None:
    with pytest.raises(Transient, match=r"trains on H100.*(compiled with CUDA|NVIDIA)") as refused:
        check_card({"device": "cuda", "card": "H100"}, CPU.device)
    assert refused.value.exit_code == 75
    for kept in ({"device": "cpu"}, {}):
        check_card(kept, CPU.device)
    check_card({"device": "cuda"}, torch.device("cuda"))


@pytest.fixture
def run(tmp_path: Path) -> TrainerRun:
    run = TrainerRun(tmp_path, steps=4)
    run.plan(40)
    return run


@pytest.mark.parametrize(
    ("settings", "tries", "micro_batch"),
    [({}, [8], 1), ({"micro_batch": 4}, [], 4), ({"numerics": {"micro_batch": 2}}, [], 2)],
)
def test_only_a_run_without_a_micro_batch_tries_one(
    run: TrainerRun,
    settings: dict[str, Any],
    tries: list[int],
    micro_batch: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []
    monkeypatch.setattr("stoker.training.load.fitting", lambda model, most, **shape: tried.append(most) or 1)
    with run.training(**settings) as training:
        assert (tried, training.numerics.micro_batch) == (tries, micro_batch)


def test_a_run_of_a_gpu_is_not_loaded_without_one(run: TrainerRun) -> None:
    with pytest.raises(Transient), run.training(numerics={"device": "cuda"}):
        pass


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("why", ["no memory", "retries"])
def test_bits_end_after_the_last_step_of_the_wider_passes(run: TrainerRun, late: bool, why: str) -> None:
    seals = {"every_s": None, "every_steps": 2}
    inbox = Inbox(run.root / "socket")
    with run.training(socket_path=inbox.path, deterministic=False, checkpoint=seals) as training:
        training.looks_late = late
        steps = training.optimizer
        if why == "retries":
            training.pressure.is_too_high = lambda: steps.steps == 2  # type: ignore[method-assign]
        else:
            training.model.embedding.register_forward_pre_hook(
                lambda _, ids: too_much() if steps.steps == 2 and len(ids[0]) > 4 else None
            )
        assert training.run() == "steps"
    told = [word for word in inbox.read() if "NUMERICS" in word]
    inbox.close()
    assert [(word["STEP"], word["MICRO_BATCH"]) for word in told] == [("0", "8"), ("2", "4")]
    assert [row["step"] for row in run.rows() if "loss" in row] == [1, 2, 3, 4]
    sealed = [json.loads((path / "checkpoint.json").read_bytes()) for path in run.checkpoints()]
    assert [(body["step"], body["micro_batch"]) for body in sealed] == [(2, 8), (4, 4)]


def test_an_entry_of_longer_windows_takes_passes_of_fewer(tmp_path: Path) -> None:
    run = TrainerRun(tmp_path, steps=2)
    run.plan(8)
    run.plan(8, seq_len=2 * SEQ_LEN)
    shapes: list[tuple[int, ...]] = []
    with run.training(micro_batch=4, heldout=None) as training:
        training.model.embedding.register_forward_pre_hook(lambda _, ids: shapes.append(ids[0].shape))
        assert training.run() == "steps"
    assert shapes == [(4, SEQ_LEN)] * 2 + [(2, 2 * SEQ_LEN)] * 4


@pytest.mark.gpu
def test_on_a_card_a_trial_and_a_step_find_what_fits() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    card = Compute(torch.device("cuda"), bf16=True)
    size = {"vocab_size": 256, "seq_len": 1024, "width": 256, "kv_heads": 4, "ffn_width": 8192}
    wide = models.make_model(tie_embeddings=True, **size).to(card.device)
    _, whole = torch.cuda.mem_get_info()
    # So much that all windows cannot fit: 8192 floats each of gate, up and their product.
    batch = 1 << (whole // (1024 * 8192 * 6) - 1).bit_length()
    most = fitting(wide, batch, global_batch=batch, length=1024, compute=card)
    assert 1 <= most < batch and batch % most == 0
    windows = torch.zeros((batch, 1025), dtype=torch.int64, device=card.device)
    made = while_it_fits(lambda size: (size, add_gradients(wide, torch.split(windows, size), card)), batch)
    assert made[0] < batch and math.isfinite(float(made[1]))


def test_windows_of_another_length_make_passes_of_at_most_as_many_tokens() -> None:
    assert windows_a_pass(8, 256, 256) == 8
    assert windows_a_pass(8, 256, 128) == 16
    assert windows_a_pass(8, 256, 300) == 6
    assert windows_a_pass(1, 256, 1024) == 1


def test_three_steps_in_a_row_with_retries_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    retries = iter([3, 3, 4, 6, 6, 7, 8, 9, 10])
    monkeypatch.setattr(memory, "allocation_retries", lambda device: next(retries))
    pressure = Pressure(torch.device("cuda"))
    asked = [pressure.is_too_high() for _ in range(8)]
    assert asked == [False, False, False, False, False, False, True, False]
