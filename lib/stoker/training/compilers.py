"""What inductor compiles with on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from importlib.metadata import version

import torch


def lacks_to_compile(device: torch.device) -> str | None:
    """Returns what inductor needs for the device and this machine lacks; None where it has all."""
    if device.type == "cpu":
        return None if shutil.which(_cxx()) else f"the C++ compiler {_cxx()}"
    if importlib.util.find_spec("triton") is None:
        return "the package triton"
    found = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return None if found else "a C compiler (gcc), which triton needs"


def compiler(device: torch.device) -> str:
    """Returns the name and version of what compiles kernels for the device."""
    if device.type == "cuda":
        return f"triton {version('triton')}"
    told = subprocess.run([_cxx(), "--version"], capture_output=True, text=True, check=True)
    return told.stdout.partition("\n")[0]


def _cxx() -> str:
    return os.environ.get("CXX", "g++")
