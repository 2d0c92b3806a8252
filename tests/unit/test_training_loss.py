"""The loss over chunks of tokens: the values of whole logits, which are never made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

from stoker.training.model.transformer import Model
from support.models import make_model

CHUNK = 20  # divides neither of the batches below
WINDOWS = torch.randint(0, 600, (3, 33), generator=torch.Generator().manual_seed(1))


def make(*, tied: bool = True) -> Model:
    model = make_model(vocab_size=600, layers=1, heads=2, tie_embeddings=tied)
    model.loss_chunk = CHUNK
    with torch.no_grad():
        model.output_weight.mul_(30)  # so that softmax is far from flat
    return model


def whole(model: Model, windows: Tensor) -> Tensor:
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten(), reduction="sum")


def gradients(
    model: Model, loss: Callable[[Model, Tensor], Tensor], windows: Tensor = WINDOWS
) -> tuple[float, dict[str, Tensor]]:
    total = loss(model, windows)
    (total / 7).backward()
    found = {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    model.zero_grad()
    return total.item(), found


@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradients_are_those_of_whole_logits(*, tied: bool) -> None:
    model = make(tied=tied)
    expected, expected_gradients = gradients(model, whole)
    loss, found = gradients(model, Model.loss_sum)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert found.keys() == expected_gradients.keys() == dict(model.named_parameters()).keys()
    for name, gradient in found.items():
        expected_norm = expected_gradients[name].norm().item()
        assert gradient.norm().item() == pytest.approx(expected_norm, rel=1e-6), name
        assert torch.allclose(gradient, expected_gradients[name], rtol=1e-4, atol=1e-5 * expected_norm), name
    with torch.inference_mode():
        each = model.loss_by_target(WINDOWS)
        assert each.shape == (3, 32) and float(each.sum()) == pytest.approx(expected, rel=1e-6)


def test_a_loss_in_bfloat16_is_summed_in_float32() -> None:
    model = make()
    expected, _ = gradients(model, whole)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, rounded_gradients = gradients(model, whole)
        loss, found = gradients(model, Model.loss_sum)
    assert rounded != expected
    assert loss == pytest.approx(rounded, rel=1e-5)
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        error = (gradient - rounded_gradients[name]).norm() / rounded_gradients[name].norm()
        assert error < 0.01, name


def test_a_loss_too_large_for_its_probability_is_finite() -> None:
    model = make()
    with torch.no_grad():
        model.output_weight.mul_(1e4)
    loss, _ = gradients(model, Model.loss_sum)
    assert loss == pytest.approx(whole(model, WINDOWS).item(), rel=1e-6)
    assert loss / WINDOWS[:, 1:].numel() > 200


class Largest(TorchDispatchMode):
    """Remembers the most elements of any tensor made under it."""

    elements = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, Tensor):
                self.elements = max(self.elements, made.numel())
        return result


@pytest.mark.parametrize("is_evaluation", [True, False])
def test_no_tensor_is_as_large_as_the_logits_of_all_tokens(*, is_evaluation: bool) -> None:
    model = make()
    with Largest() as largest, torch.inference_mode() if is_evaluation else nullcontext():
        if is_evaluation:
            model.loss_by_target(WINDOWS)
        else:
            model.loss_sum(WINDOWS).backward()
    assert largest.elements == CHUNK * 600


@pytest.mark.gpu
def test_a_card_has_the_loss_of_whole_logits_and_the_same_bits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    model, windows = make().cuda(), WINDOWS.cuda()
    torch.set_deterministic_debug_mode("error")
    try:
        with torch.autocast("cuda", torch.bfloat16):
            rounded, rounded_gradients = gradients(model, whole, windows)
            loss, found = gradients(model, Model.loss_sum, windows)
            again, found_again = gradients(model, Model.loss_sum, windows)
    finally:
        torch.set_deterministic_debug_mode("default")
    assert loss == again == pytest.approx(rounded, rel=1e-4)
    for name, gradient in found.items():
        assert torch.equal(gradient, found_again[name]), name
        error = (gradient - rounded_gradients[name]).norm() / rounded_gradients[name].norm()
        assert error < 0.02, name
