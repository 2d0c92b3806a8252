"""One optimizer step: schedule, AdamW against a reference, micro-batches, losses that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from stoker.training.model.transformer import Model
from stoker.training.steps.device import Compute
from stoker.training.steps.memory import most_windows
from stoker.training.steps.muon import Muon
from stoker.training.steps.optimizer import AdamW
from stoker.training.steps.schedule import Schedule
from stoker.training.steps.step import Stepper, clip_gradients
from support.models import make_model

CPU = Compute(torch.device("cpu"), bf16=False)


def make() -> Model:
    return make_model(vocab_size=40, seq_len=12, layers=1, tie_embeddings=True)


def adamw(model: Model) -> AdamW:
    return AdamW(model.named_parameters(), betas=(0.9, 0.95), weight_decay=0.1)


def muon(model: Model) -> Muon:
    return Muon(model.named_parameters(), model.shape, betas=(0.9, 0.95), weight_decay=0.1)


OPTIMIZERS: dict[str, Callable[[Model], AdamW]] = {"adamw": adamw, "muon": muon}


def stepper(model: Model) -> Stepper:
    return Stepper(model, adamw(model), CPU, clip=1.0)


def state_of(model: Model, optimizer: AdamW) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters()) | optimizer.tensors()


@pytest.mark.parametrize(
    ("step", "rate"),
    [(1, 0.1), (5, 0.5), (10, 1.0), (60, 0.55), (110, 0.1), (200, 0.1)],
)
def test_the_rate_warms_up_and_falls_to_the_runs_end(step: int, rate: float) -> None:
    schedule = Schedule(peak=1.0, warmup_steps=10, horizon=110, min_ratio=0.1)
    assert schedule.rate(step) == pytest.approx(rate)


@pytest.mark.parametrize("step", [1, 7, 11, 13, 59, 60, 61, 97, 110, 111])
def test_the_cosine_keeps_its_bits(step: int) -> None:
    before = 3e-4 * step / 10 if step <= 10 else 0.0
    if step > 10:
        done = min(1.0, (step - 10) / 100)
        before = 3e-4 * (0.1 + (1.0 - 0.1) * 0.5 * (1.0 + math.cos(math.pi * done)))
    fields = {"name": "cosine", "warmup_steps": 10, "min_ratio": 0.1}
    assert Schedule.parse(fields, peak=3e-4, horizon=110).rate(step) == before


@pytest.mark.parametrize(
    ("step", "rate"),
    [(5, 0.5), (10, 1.0), (80, 1.0), (81, 0.1 + 0.9 * (1 - 20**-0.5)), (85, 0.55), (100, 0.1), (120, 0.1)],
)
def test_wsd_stays_at_the_peak_until_its_decay_and_constant_for_good(step: int, rate: float) -> None:
    fields = {"name": "wsd", "warmup_steps": 10, "min_ratio": 0.1, "decay": 0.2, "decay_begins": 80}
    assert Schedule.parse(fields, peak=1.0, horizon=100).rate(step) == pytest.approx(rate)
    constant = Schedule.parse(
        {"name": "constant", "warmup_steps": 10, "min_ratio": 0.1}, peak=1.0, horizon=100
    )
    assert constant.rate(step) == (0.5 if step == 5 else 1.0)


def test_a_schedule_without_warm_up_or_shorter_than_it_still_gives_rates() -> None:
    assert Schedule(1.0, 0, 10, 0.0).rate(10) == pytest.approx(0.0)
    assert Schedule(1.0, 0, 10, 0.0).rate(1) == pytest.approx(0.5 * (1 + math.cos(math.pi / 10)))
    assert Schedule(1.0, 100, 10, 0.1).rate(10) == pytest.approx(0.1)


def reference_adamw(model: Model) -> torch.optim.AdamW:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


def test_adamw_makes_the_steps_of_torchs_own_bit_for_bit() -> None:
    ours, theirs = make(), make()
    optimizer, reference = adamw(ours), reference_adamw(theirs)
    generator = torch.Generator().manual_seed(2)
    for step in range(1, 6):
        windows = torch.randint(0, 40, (4, 13), generator=generator)
        for model in (ours, theirs):
            model.loss_sum(windows).backward()
        for group in reference.param_groups:
            group["lr"] = 0.01 / step
        optimizer.step(0.01 / step)
        reference.step()
        reference.zero_grad()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other) and mine.grad is None, name
        assert torch.equal(optimizer.tensors()[f"{name}.exp_avg_sq"], reference.state[other]["exp_avg_sq"])


def test_vectors_are_not_decayed() -> None:
    model = nn.Linear(3, 3)
    before = model.bias.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    weight = model.weight.detach().clone()
    AdamW(model.named_parameters(), betas=(0.9, 0.95), weight_decay=0.5).step(0.1)
    assert torch.equal(model.bias, before)
    assert torch.allclose(model.weight, weight * 0.95)


def test_gradients_are_clipped_by_their_joint_norm() -> None:
    one, other = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    one.grad, other.grad = torch.tensor([3.0]), torch.tensor([4.0])
    assert clip_gradients([one, other], 1.0) == pytest.approx(5.0)
    assert torch.allclose(torch.cat([one.grad, other.grad]), torch.tensor([0.6, 0.8]))
    one.grad, other.grad = torch.tensor([3.0]), torch.tensor([4.0])
    assert clip_gradients([one, other], 0.0) == pytest.approx(5.0)
    assert one.grad.item() == 3.0


@pytest.mark.parametrize("micro_batch", [1, 2, 4, 5])
def test_the_micro_batch_changes_neither_loss_nor_step(micro_batch: int) -> None:
    windows = torch.randint(0, 40, (8, 13), generator=torch.Generator().manual_seed(3))
    results, models = [], []
    for size in (8, micro_batch):
        model = make()
        results.append(stepper(model).begin(windows.split(size), rate=1e-3).result())
        models.append(model)
    assert results[1].loss == pytest.approx(results[0].loss, abs=1e-5)
    assert results[1].grad_norm == pytest.approx(results[0].grad_norm, rel=1e-4)
    for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(mine, other, atol=1e-4)


def test_micro_batches_of_two_lengths_count_every_target_once() -> None:
    generator = torch.Generator().manual_seed(3)
    long, short = torch.randint(0, 40, (3, 13), generator=generator), torch.randint(0, 40, (5, 5))
    model = make()
    targets = 3 * 12 + 5 * 4
    with torch.no_grad():
        expected = (model.loss_sum(long) + model.loss_sum(short)) / targets
    result = stepper(model).begin([long, short], rate=1e-3).result()
    assert result.loss == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize(
    ("what", "bad"), [("gradient", math.nan), ("gradient", math.inf), ("loss", math.inf)]
)
def test_a_step_that_is_not_finite_and_all_after_it_change_no_bit(
    name: str, what: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    optimizer = OPTIMIZERS[name](model)
    steps = Stepper(model, optimizer, CPU, clip=1.0)
    windows = torch.randint(0, 40, (2, 13), generator=torch.Generator().manual_seed(3))
    assert steps.begin([windows], rate=1e-3).result().is_finite
    before = {name: each.clone() for name, each in state_of(model, optimizer).items()}
    assert any(each.abs().max() > 0 for name, each in before.items() if "norm" in name)

    if what == "gradient":
        hook = model.norm.weight.register_hook(lambda gradient: gradient * bad)
        result = steps.begin([windows], rate=1e-3).result()
        hook.remove()
    else:
        with monkeypatch.context() as patch:
            patch.setattr(model, "loss_sum", lambda windows: Model.loss_sum(model, windows) + bad)
            result = steps.begin([windows], rate=1e-3).result()
    assert not result.is_finite
    assert math.isfinite(result.loss if what == "gradient" else result.grad_norm)
    assert steps.begin([windows], rate=1e-3).result().is_finite
    after = state_of(model, optimizer)
    assert all(torch.equal(after[name], each) for name, each in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loss_that_is_not_finite_is_no_finite_result() -> None:
    model = make()
    with torch.no_grad():
        model.blocks[0].ffn.down.weight[0, 0] = math.nan
    result = stepper(model).begin([torch.zeros((2, 13), dtype=torch.int64)], rate=1e-3).result()
    assert math.isnan(result.loss) and not result.is_finite


def test_a_cpus_passes_have_a_bounded_number_of_tokens_and_divide_the_batch() -> None:
    assert most_windows(global_batch=16, seq_len=256, device="cpu") == 8
    assert most_windows(global_batch=15, seq_len=256, device="cpu") == 5
    assert most_windows(global_batch=8, seq_len=4096, device="cpu") == 1
    assert most_windows(global_batch=24, seq_len=4096, device="cuda") == 24


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_on_a_card_the_host_waits_for_no_step_that_it_begins_and_a_bad_one_changes_no_bit(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    card = Compute(torch.device("cuda"), bf16=True)
    model = make().to(card.device)
    optimizer = OPTIMIZERS[name](model)
    steps = Stepper(model, optimizer, card, clip=1.0)
    windows = torch.randint(0, 40, (2, 13), generator=torch.Generator().manual_seed(3)).to(card.device)
    assert steps.begin([windows], rate=1e-3).result().is_finite  # libraries are loaded now
    before = {name: each.clone() for name, each in state_of(model, optimizer).items()}
    hook = model.norm.weight.register_hook(lambda gradient: gradient * math.nan)
    torch.cuda.set_sync_debug_mode("error")
    try:
        begun = steps.begin([windows], rate=1e-3)
        hook.remove()
        later = steps.begin([windows], rate=1e-3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not begun.result().is_finite and later.result().is_finite
    assert all(torch.equal(each, before[name]) for name, each in state_of(model, optimizer).items())
