"""What decides the bits of a step besides the settings of a launch: kernels, their sizes, and the machine.

It is resolved once, at the beginning of a run, and recorded in every checkpoint. A run keeps the kernels it
began with, also under a newer Stoker that would choose others for a new run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from stoker.store.errors import ConfigError
from stoker.store.files import canonical_json
from stoker.supervise.run.numerics_record import ASKED, differences
from stoker.training.compilers import compiler, lacks_to_compile
from stoker.training.launch import Launch
from stoker.training.steps.memory import most_windows

# Tokens at once, for a new run. On a CPU 256 to 1024 are alike to 4 % (4,096 to 50,257 ids, width 192 and
# 256, one thread). A GPU adds each chunk's gradient to the head's, which must stay little beside the rest.
CPU_LOSS_CHUNK = 256
CUDA_LOSS_CHUNK = 8192


@dataclass(frozen=True)
class Numerics:
    """The kernels of a run, then the facts of the machine; each value is JSON."""

    precision: str  # of forward passes: "float32" or "bfloat16"
    optimizer: str
    loss: str
    loss_chunk: int  # in tokens
    attention: str  # "sdpa", with a document mask "sdpa_documents" (dense) or "varlen_documents" (CUDA)
    compile: str  # "none" or "blocks"
    recompute: str  # "none" or "blocks"
    tf32: bool
    micro_batch: int  # windows of a forward pass, of the launch's seq_len; see memory.windows_a_pass
    micro_batch_asked: int | None  # the launch's, when `micro_batch` was chosen; None: auto

    device: str  # "cpu" or "cuda"
    card: str | None
    cuda: str | None  # the version that torch was built for
    cpu: str  # the instruction set of torch's CPU kernels
    torch: str
    compiler: str | None  # of compiled blocks: g++ or triton, with its version

    def body(self) -> dict[str, Any]:
        return asdict(self)

    def word(self) -> str:
        """Returns the value of the word NUMERICS."""
        return canonical_json(self.body()).decode()


def kernels(launch: Launch, device: torch.device, precision: str) -> dict[str, tuple[Any, ...]]:
    """Returns the kernels that this Stoker has for a launch; the first of each is what a new run takes."""
    is_cuda = device.type == "cuda"
    attention = ["sdpa_documents"] if launch.model.get("document_mask") else ["sdpa"]
    if launch.model.get("document_mask") and is_cuda and precision == "bfloat16":
        attention.insert(0, "varlen_documents")  # flash attention knows no float32
    return {
        "optimizer": ("muon" if launch.optimizer["name"] == "muon" else "fused_adamw",),
        "loss": ("linear_cross_entropy",),
        "attention": tuple(attention),
        "compile": _known_compile(device),
        "recompute": ("none", "blocks"),
        "tf32": (False,),
    }


def resolve(launch: Launch, device: torch.device) -> Numerics:
    """Returns the numerics of a launch on this machine; no other place chooses a kernel.

    What the operator asks for counts first, then the run's own (`launch.numerics`), then a new run's. A
    kernel that this Stoker or this device lacks is replaced. Raises ConfigError for a wish that this machine
    cannot fulfil, and for a replay that would not have the same.
    """
    kept, is_cuda = launch.numerics or {}, device.type == "cuda"
    chosen: dict[str, Any] = {
        "precision": kept.get("precision", "bfloat16" if is_cuda else "float32"),
        "micro_batch": kept.get("micro_batch")
        or most_windows(global_batch=launch.global_batch, seq_len=launch.seq_len, device=device.type),
        ASKED: kept.get(ASKED),
    }
    if not launch.is_replay:
        _check_compiler(launch, device)
        chosen |= _asked(launch, kept)
    for name, known in kernels(launch, device, chosen["precision"]).items():
        chosen.setdefault(name, kept[name] if kept.get(name) in known else known[0])
    by_device = CUDA_LOSS_CHUNK if is_cuda else CPU_LOSS_CHUNK
    chosen["loss_chunk"] = kept["loss_chunk"] if chosen["loss"] == kept.get("loss") else by_device
    numerics = Numerics(**chosen, **machine(device, chosen["compile"]))
    if launch.is_replay and (changes := differences(kept, numerics.body())):
        raise ConfigError(
            f"this machine cannot give the bits of the recorded run: {'; '.join(changes)}; replay it where "
            "these are the same"
        )
    return numerics


def _check_compiler(launch: Launch, device: torch.device) -> None:
    """Raises ConfigError where the operator asks for compiled blocks and this machine cannot make them."""
    if not (lack := lacks_to_compile(device)):
        return
    if launch.compile == "blocks":
        raise ConfigError(
            f"train.compile is blocks, and this machine lacks {lack}: install it, or write none"
        )
    if launch.compile == "auto" and device.type == "cuda":
        print(f"trainer: blocks are not compiled, because this machine lacks {lack}", file=sys.stderr)


def _known_compile(device: torch.device) -> tuple[str, ...]:
    if lacks_to_compile(device):
        return ("none",)
    return ("blocks", "none") if device.type == "cuda" else ("none", "blocks")


def _asked(launch: Launch, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the pipeline file sets; `auto` is no wish, and a micro-batch is one when it changed."""
    wishes: dict[str, Any] = {"recompute": launch.recompute}
    wishes |= {"precision": launch.precision} if launch.precision != "auto" else {}
    wishes |= {"compile": launch.compile} if launch.compile != "auto" else {}
    # One that did not fit was halved: the same wish again does not undo that.
    if launch.micro_batch is not None and launch.micro_batch != kept.get(ASKED):
        wishes["micro_batch"] = launch.micro_batch
    return {**wishes, ASKED: launch.micro_batch}


def machine(device: torch.device, compiled: str) -> dict[str, Any]:
    """Returns the facts of this machine that decide bits; the compiler does where blocks are compiled."""
    is_cuda = device.type == "cuda"
    return {
        "device": device.type,
        "card": torch.cuda.get_device_name(device) if is_cuda else None,
        "cuda": torch.version.cuda if is_cuda else None,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
        "compiler": compiler(device) if compiled == "blocks" else None,
    }
