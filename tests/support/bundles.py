"""A bundle made by hand: the files that a bundle has, small, with their sums; no model loads from it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from stoker.store.checksums import write_checksums
from support.loopback_hub import noise

CARD = b"---\nlicense: apache-2.0\n---\n# A small model\n"


def small_bundle(place: Path, *, weights: int = 1 << 16, seed: int = 0, **release: Any) -> Path:
    """Make the directory; `release` changes what release.json says."""
    told = {"v": 1, "proven": True, "run": "main", "step": 20, "license": "apache-2.0", **release}
    files = {
        "config.json": b'{"architectures": ["LlamaForCausalLM"]}\n',
        "generation_config.json": b"{}\n",
        "model.safetensors": noise(weights, seed),
        "tokenizer.json": b'{"version": "1.0"}\n',
        "README.md": CARD,
        "release.json": json.dumps(told).encode(),
    }
    place.mkdir(parents=True)
    for name, data in files.items():
        (place / name).write_bytes(data)
    write_checksums(place, {name: hashlib.sha256(data).hexdigest() for name, data in files.items()})
    return place


def contents(place: Path) -> dict[str, bytes]:
    """Every file below a directory, by its path there."""
    return {str(each.relative_to(place)): each.read_bytes() for each in place.rglob("*") if each.is_file()}
