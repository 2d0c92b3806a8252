"""Memory that runs out: the micro-batch is halved, and the step is the one of the smaller micro-batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from stoker.store.errors import NoMemory
from stoker.training.device import Compute
from stoker.training.evaluate import evaluate
from stoker.training.memory import Pressure, while_it_fits, windows_a_pass
from stoker.training.model import Model, initialize
from stoker.training.optimizer import AdamW
from stoker.training.shape import Shape
from stoker.training.step import Stepper

CPU = Compute(torch.device("cpu"), bf16=False)
SHAPE = Shape(40, 12, 1, 16, 2, 2, 24, 10000.0, 1e-5, True)


def too_much() -> None:
    """Ask for more than there is, which torch refuses in its own words."""
    torch.empty(1 << 46, dtype=torch.uint8)


class Hungry(Model):
    """A model that fits `most` windows into memory, in its second pass and all later ones."""

    most, passes = 100, 0

    def loss_sum(self, windows: torch.Tensor) -> torch.Tensor:
        self._pass(windows)
        return super().loss_sum(windows)

    def loss_by_window(self, windows: torch.Tensor) -> torch.Tensor:
        self._pass(windows)
        return super().loss_by_window(windows)

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


def test_an_evaluation_halves_for_itself_and_reads_every_window_once() -> None:
    windows = np.random.default_rng(1).integers(0, 40, (11, 13)).astype("<u2")
    found = evaluate(hungry(most=2), windows, compute=CPU, micro_batch=4)
    plain = evaluate(hungry(most=100), windows, compute=CPU, micro_batch=11)
    assert found is not None and plain is not None
    assert found.loss == pytest.approx(plain.loss, rel=1e-6)
    assert found.stderr == pytest.approx(plain.stderr, rel=1e-6)


def test_windows_of_another_length_make_passes_of_at_most_as_many_tokens() -> None:
    assert windows_a_pass(8, 256, 256) == 8
    assert windows_a_pass(8, 256, 128) == 16
    assert windows_a_pass(8, 256, 300) == 6
    assert windows_a_pass(1, 256, 1024) == 1


def test_three_steps_in_a_row_with_retries_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    retries = iter([3, 3, 4, 6, 6, 7, 8, 9, 10])
    monkeypatch.setattr(Pressure, "retries", property(lambda self: next(retries)))
    pressure = Pressure(torch.device("cuda"))
    asked = [pressure.is_too_high() for _ in range(8)]
    assert asked == [False, False, False, False, False, False, True, False]


def test_a_cpu_has_no_retries() -> None:
    assert Pressure(CPU.device).retries == 0
