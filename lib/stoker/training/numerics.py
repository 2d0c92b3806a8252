"""What decides the bits of a step besides the settings of a launch: kernels, their sizes, and the machine.

It is resolved once, at the beginning of a run, and recorded in every checkpoint. A run keeps the kernels it
began with, also under a newer Stoker that would choose others for a new run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from stoker.training.device import Compute
from stoker.training.launch import Launch


@dataclass(frozen=True)
class Numerics:
    """The kernels of a run, then the facts of the machine; each value is JSON."""

    precision: str  # of forward passes: "float32" or "bfloat16"
    optimizer: str  # the kernel: "adamw_loop" (before there were numerics)
    loss: str  # "cross_entropy" (whole logits)
    loss_chunk: int | None  # in tokens; None: all at once
    attention: str  # "sdpa", with a document mask "sdpa_documents" (dense) or "varlen_documents" (CUDA)
    compile: str  # "none" or "blocks"
    recompute: str  # "none" or "blocks"
    tf32: bool
    micro_batch: int  # in windows of the launch's seq_len

    device: str  # "cpu" or "cuda"
    card: str | None
    cuda: str | None  # the version that torch was built for
    cpu: str  # the instruction set of torch's CPU kernels
    torch: str

    def body(self) -> dict[str, Any]:
        return asdict(self)


MACHINE = ("device", "card", "cuda", "cpu", "torch")

# A run that began before there were numerics; the values that its machine and settings decided are missing.
LEGACY: Mapping[str, Any] = {
    "optimizer": "adamw_loop",
    "loss": "cross_entropy",
    "loss_chunk": None,
    "attention": "sdpa",
    "compile": "none",
    "recompute": "none",
    "tf32": False,
}


def resolve(launch: Launch, compute: Compute, micro_batch: int) -> Numerics:
    """Returns the numerics of a launch: the run's own kernels where it has any, on the machine of now."""
    kept = dict(launch.numerics or {})
    chosen = {
        **LEGACY,
        "precision": compute.precision,
        "micro_batch": micro_batch,
        "attention": attention_kernel(launch, compute),
        **kept,
    }
    return Numerics(**{**chosen, **machine(compute)})


def machine(compute: Compute) -> dict[str, Any]:
    """Returns the facts of this machine that decide bits."""
    is_cuda = compute.device.type == "cuda"
    return {
        "device": compute.device.type,
        "card": torch.cuda.get_device_name(compute.device) if is_cuda else None,
        "cuda": torch.version.cuda if is_cuda else None,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
    }


def attention_kernel(launch: Launch, compute: Compute) -> str:
    """Returns the kernel of a new run; flash attention over packed documents knows no float32."""
    if not launch.model.get("document_mask"):
        return "sdpa"
    return "varlen_documents" if compute.device.type == "cuda" and compute.bf16 else "sdpa_documents"
