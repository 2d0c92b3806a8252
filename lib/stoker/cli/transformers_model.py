"""Writes the model of a checkpoint as a directory that Hugging Face transformers loads.

A few rows at a time are read, without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from stoker.checkpoints.format import FileEntry
from stoker.checkpoints.retention import reading
from stoker.checkpoints.seal import Tensor, file_parts, split
from stoker.cli.output import Sink, new_directory, write_json
from stoker.shards.tokenize.tokenizer import load_tokenizer
from stoker.store.errors import DataError
from stoker.store.files import write_atomic
from stoker.store.record import parse_json
from stoker.training.model.shape import Shape
from stoker.training.model.transformers_layout import Rows, config_of, rows_of

FILE_BYTES = 5 * 10**9  # as transformers splits
DTYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}  # the name in safetensors, and bytes
PIECE_BYTES = 32 << 20  # of a tensor, held at once
SMALL_FILES_BYTES = 32 << 20  # more than a tokenizer and the configuration take


def export_model(checkpoint: Path, files: Mapping[str, FileEntry], out: Path) -> str:
    """Writes a proven checkpoint's model to the new directory `out`; returns the name of its architecture.

    `files` are the checkpoint's. Raises as write_model, UsageError where `out`
    exists, StorageError where there is no room.
    """
    with reading(checkpoint), new_directory(out, bytes_of(files)) as directory:
        return write_model(checkpoint, files, directory)[0]


def bytes_of(files: Mapping[str, FileEntry], dtype: str = "float32") -> int:
    """Returns what the directory takes at most, in bytes."""
    weights = sum(entry.size for name, entry in files.items() if name.startswith("model-"))
    return weights * DTYPES[dtype][1] // 4 + SMALL_FILES_BYTES


def write_model(
    checkpoint: Path, files: Mapping[str, FileEntry], directory: Path, dtype: str = "float32"
) -> tuple[str, dict[str, str]]:
    """Fills a directory with the model; returns its architecture, and the sha256 of each file of weights.

    Raises DataError where the checkpoint's tensors are not those of its model.json, or the tokenizer has more
    ids than these have rows.
    """
    described = parse_json((checkpoint / "model.json").read_bytes())
    shape = Shape.parse(described, vocab_size=described["vocab_size"], seq_len=described["seq_len"])
    tokenizer = load_tokenizer(checkpoint / "tokenizer.json")
    if tokenizer.vocab_size > shape.vocab_size:
        ids = f"{tokenizer.vocab_size:,} ids, the model has rows for {shape.vocab_size:,}"
        raise DataError(f"{checkpoint}: its tokenizer.json has {ids}: no prompt with the others would work")
    config = {**config_of(shape, tokenizer.eot), "dtype": dtype}
    saved: dict[str, tuple[Path, list[int]]] = {}
    for path in (checkpoint / name for name in sorted(files) if name.startswith("model-")):
        with safe_open(path, framework="np") as file:
            saved |= {key: (path, file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    sums = _write_weights(directory, saved, rows_of(shape), dtype)
    write_json(directory / "config.json", config)
    special = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(directory / "generation_config.json", special)
    _write_tokenizer(checkpoint / "tokenizer.json", directory, config)
    return str(config["architectures"][0]), sums


def _bfloat16(values: Any) -> Any:
    """Returns the nearest bfloat16 of each float32, ties to even, as unsigned numbers of 16 bits."""
    bits = values.view(np.uint32)
    rounded = bits + (0x7FFF + (bits >> 16 & 1))
    # The sum would carry a NaN over into infinity, or into its sign.
    return (np.where(np.isnan(values), np.uint32(0x7FC00000), rounded) >> 16).astype(np.uint16)


class _Part:
    """The bytes of rows, which are read when they are written."""

    def __init__(self, name: str, saved: tuple[Path, list[int]], rows: Rows, dtype: str) -> None:
        self._file, (height, *rest) = saved
        self._name, self._dtype = name, dtype
        self._rows = range(rows.start, height if rows.stop is None else rows.stop)
        self.shape = (len(self._rows), *rest)
        self.nbytes = DTYPES[dtype][1] * math.prod(self.shape)

    def pieces(self) -> Iterator[memoryview]:
        """Yields the bytes, a few rows at a time; a file is mapped only as long as it is open."""
        rows = max(1, PIECE_BYTES * len(self._rows) // max(1, self.nbytes))
        for start in self._rows[::rows]:
            with safe_open(self._file, framework="np") as file:
                values = file.get_slice(self._name)[start : min(start + rows, self._rows.stop)]
            yield (_bfloat16(values) if self._dtype == "bfloat16" else values).data


def _write_weights(
    directory: Path, saved: Mapping[str, tuple[Path, list[int]]], wanted: Mapping[str, Rows], dtype: str
) -> dict[str, str]:
    """Writes model.safetensors, or several and their index where they are larger than FILE_BYTES."""
    if differing := sorted(saved.keys() ^ {rows.name for rows in wanted.values()}):
        raise DataError(f"the checkpoint and its model.json differ in tensors, first in {differing[0]}")
    tensors: list[Tensor] = []
    for name, rows in wanted.items():
        part = _Part(rows.name, saved[rows.name], rows, dtype)
        tensors.append(Tensor(name, DTYPES[dtype][0], part.shape, part))
    groups = split(tensors, FILE_BYTES)
    index: dict[str, str] = {}
    sums: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        name = "model.safetensors"
        if len(groups) > 1:
            name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        index |= {tensor.name: name for tensor in group}
        with Sink(directory / name) as sink:
            for part in file_parts(group, {"format": "pt"}):
                for piece in part.pieces() if isinstance(part, _Part) else (part,):
                    sink.write(piece)
        sums[name] = sink.sha256
    if len(groups) > 1:
        total = sum(tensor.data.nbytes for tensor in tensors)
        body = {"metadata": {"total_size": total}, "weight_map": index}
        write_json(directory / "model.safetensors.index.json", body)
    return sums


def _write_tokenizer(file: Path, directory: Path, config: Mapping[str, Any]) -> None:
    """Writes the tokenizer, which puts end-of-text before a text: so began every document in training."""
    tokenizer, eot = Tokenizer.from_file(str(file)), config["eos_token_id"]
    word = tokenizer.id_to_token(eot)
    tokenizer.add_special_tokens([word])
    tokenizer.post_processor = TemplateProcessing(
        single=[word, "$A"], pair=[word, "$A", word, "$B"], special_tokens=[(word, eot)]
    )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    write_atomic(directory / "tokenizer.json", tokenizer.to_str().encode(), durable=False)
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        **dict.fromkeys(("bos_token", "eos_token", "pad_token"), word),
    }
    write_json(directory / "tokenizer_config.json", about)
