"""Model FLOPs utilization (MFU): the operations of a step over those that the card could have made."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model

# Dense bf16 tensor operations with float32 sums, in TFLOP/s, by the name that the driver tells. NVIDIA's data
# sheets and architecture white papers; where those tell the rate with sparsity alone, half of that. The rates
# are at the boost clock: a card at its power limit cannot reach them.
PEAK_TFLOPS = {
    **dict.fromkeys(
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"),
        312.0,  # A100 data sheet
    ),
    "NVIDIA H100 80GB HBM3": 989.4,  # SXM; H100 architecture white paper
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H100 NVL": 835.5,  # H100 data sheet: 1,671 with sparsity
    "NVIDIA H200": 989.4,  # SXM; H200 data sheet, the H100's rate
    "NVIDIA H200 NVL": 835.5,  # 1,671 with sparsity
    "NVIDIA B200": 2250.0,  # DGX B200 data sheet: 36 P for eight, dense 18
    "NVIDIA L4": 121.0,  # 242 with sparsity
    "NVIDIA L40S": 362.05,
    "NVIDIA A10": 125.0,
    "NVIDIA GeForce RTX 3090": 71.0,  # GA102 white paper
    "NVIDIA GeForce RTX 4090": 165.2,  # Ada white paper
    "NVIDIA GeForce RTX 5090": 209.5,  # RTX Blackwell white paper
}


def peak_flops(card: str | None) -> float | None:
    """Returns a card's peak in FLOP/s; None for a CPU and for a card that is not in the table."""
    tera = PEAK_TFLOPS.get(card or "")
    return None if tera is None else tera * 1e12


def matmul_parameters(model: Model) -> int:
    """Returns the parameters of matrix products: a tied embedding counts as the head, another does not."""
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim >= 2)
    return matrices - (0 if model.head is None else model.embedding.weight.numel())


def step_flops(matrices: int, shape: Shape, sizes: Iterable[tuple[int, int]]) -> int:
    """Returns the operations of a step over groups of windows, each (windows, seq_len).

    Forward and backward pass take 6 N + 12 L C T a token (PaLM, Chowdhery et al. 2022, appendix B): neither
    recomputation nor the causal half is taken off.
    """
    return sum(
        windows * seq_len * (6 * matrices + 12 * shape.layers * shape.width * seq_len)
        for windows, seq_len in sizes
    )
