"""The figures of a step: MFU by PaLM's count, memory, waits and stalls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stoker.config.schema_train import ModelShape
from stoker.training.model.flops import PEAK_TFLOPS, matmul_parameters, peak_flops, step_flops
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model
from stoker.training.steps.figures import Figures, allocation_retries, peak_memory_bytes

CPU = torch.device("cpu")
VOCAB, WIDTH, LAYERS, FFN = 50, 8, 3, 20


def model(**changes: Any) -> Model:
    usual = {"layers": LAYERS, "width": WIDTH, "heads": 4, "kv_heads": 2, "ffn_width": FFN}
    rest = {"rope_theta": 1e4, "norm_eps": 1e-5, "tie_embeddings": True}
    return Model(Shape(vocab_size=VOCAB, seq_len=16, **{**usual, **rest, **changes}))


@pytest.mark.parametrize("tied", [True, False])
def test_matmul_parameters_are_all_matrices_with_the_head_once_and_no_embedding(tied: bool) -> None:
    attention = WIDTH * (4 + 2 * 2) * (WIDTH // 4) + WIDTH * WIDTH
    block = attention + 3 * WIDTH * FFN
    assert matmul_parameters(model(tie_embeddings=tied)) == LAYERS * block + VOCAB * WIDTH


@pytest.mark.parametrize("more", [{}, {"tie_embeddings": False}, {"qk_norm": True}, {"kv_heads": 4}])
def test_a_configured_model_counts_the_parameters_that_are_trained(more: dict[str, Any]) -> None:
    shape = {"layers": LAYERS, "width": WIDTH, "heads": 4, "kv_heads": 2, "ffn_width": FFN, **more}
    assert ModelShape(**shape).parameters(VOCAB) == sum(one.numel() for one in model(**more).parameters())


def test_a_steps_operations_are_palms_over_windows_of_each_length() -> None:
    one = model()
    matrices = matmul_parameters(one)
    expected = 2 * 10 * (6 * matrices + 12 * LAYERS * WIDTH * 10) + 3 * 6 * (
        6 * matrices + 12 * LAYERS * WIDTH * 6
    )
    assert step_flops(matrices, one.shape, [(2, 10), (3, 6)]) == expected


def test_only_the_exact_name_of_a_card_has_a_peak() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989.4e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert [peak_flops(card) for card in (None, "", "NVIDIA H100", "Tesla V100-SXM2-16GB")] == [None] * 4
    assert all(50 < tera < 3000 for tera in PEAK_TFLOPS.values())


def test_the_figures_of_a_step_leave_out_what_is_not_known() -> None:
    groups = [torch.zeros((2, 11), dtype=torch.long), torch.zeros((1, 7), dtype=torch.long)]
    figures = Figures(model(), CPU, None)
    told = figures.of_step(groups, seconds=2.0, waited_s=0.25, micro_batch=2)
    assert told.pop("memory_bytes") > 2**20
    assert told == {"tokens_per_s": 13.0, "data_wait_s": 0.25, "alloc_retries": 0, "micro_batch": 2}
    with figures.saving():
        pass
    assert 0 <= figures.of_step(groups, seconds=2.0, waited_s=0.0, micro_batch=2)["save_stall_s"] < 60


def test_mfu_is_the_steps_operations_of_the_cards_peak() -> None:
    one, windows = model(), torch.zeros((4, 17), dtype=torch.long)
    seconds = step_flops(matmul_parameters(one), one.shape, [(4, 16)]) / (0.4 * 312e12)
    told = Figures(one, CPU, "NVIDIA A100-SXM4-80GB").of_step(
        [windows], seconds=seconds, waited_s=0.0, micro_batch=1
    )
    assert told["mfu"] == 0.4


@pytest.mark.gpu
def test_the_peak_of_a_gpu_is_of_the_step_alone() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda")
    peak_memory_bytes(device)
    large = torch.zeros(2**24, device=device)
    with_it = peak_memory_bytes(device)
    del large
    peak_memory_bytes(device)
    assert with_it >= 2**26 > peak_memory_bytes(device) + 2**25
    assert allocation_retries(device) >= 0
