"""Writes the model of a checkpoint as a directory that Hugging Face transformers loads.

A few rows at a time are read, without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from stoker.checkpoints.seal import Tensor, file_parts, split
from stoker.cli.model_weights import STEMS, Input, Weights
from stoker.cli.output import Sink, write_json
from stoker.shards.tokenize.tokenizer import load_tokenizer
from stoker.store.errors import DataError
from stoker.store.files import write_atomic
from stoker.store.record import parse_json
from stoker.training.model.shape import Shape
from stoker.training.model.transformers_layout import Rows, config_of, rows_of

FILE_BYTES = 5 * 10**9  # as transformers splits
DTYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}  # the name in safetensors, and bytes
PIECE_VALUES = 1 << 16  # of a tensor, held at once: with their sums they stay in the cache of a processor
SMALL_FILES_BYTES = 32 << 20  # more than a tokenizer and the configuration take

_Place = tuple[Path, int, list[int]]  # of a tensor of float32: its file, where it begins there, its shape


def bytes_of(weights: Weights, dtype: str = "float32") -> int:
    """Returns what the directory takes at most, in bytes."""
    files = weights.newest.body.files.items()
    size = sum(entry.size for name, entry in files if name.startswith(STEMS[weights.kind]))
    return size * DTYPES[dtype][1] // 4 + SMALL_FILES_BYTES


def write_model(weights: Weights, directory: Path, dtype: str = "float32") -> tuple[str, dict[str, str]]:
    """Fills a directory with the model; returns its architecture, and the sha256 of each file of weights.

    Raises DataError where a checkpoint's tensors are not those of its model.json, the tokenizer has more ids
    than these have rows, or a value that goes into a mean is not finite.
    """
    checkpoint = weights.newest.directory
    described = parse_json((checkpoint / "model.json").read_bytes())
    shape = Shape.parse(described, vocab_size=described["vocab_size"], seq_len=described["seq_len"])
    tokenizer = load_tokenizer(checkpoint / "tokenizer.json")
    if tokenizer.vocab_size > shape.vocab_size:
        ids = f"{tokenizer.vocab_size:,} ids, the model has rows for {shape.vocab_size:,}"
        raise DataError(f"{checkpoint}: its tokenizer.json has {ids}: no prompt with the others would work")
    # transformers keeps keys that it does not know, and says nothing of them.
    about = {f"stoker_{name}": value for name, value in weights.about.items()}
    config = {**config_of(shape, tokenizer.eot), "dtype": dtype, **about}
    sums = _write_weights(directory, weights, rows_of(shape), dtype)
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
    """The bytes of rows, or of their mean, which are read when they are written."""

    def __init__(self, saved: Sequence[_Place], shares: Sequence[float], rows: Rows, dtype: str) -> None:
        height, *rest = saved[0][2]
        self._saved, self._shares, self._name, self._dtype = saved, shares, rows.name, dtype
        self._first = rows.start * math.prod(rest)
        self.shape = ((height if rows.stop is None else rows.stop) - rows.start, *rest)
        self.nbytes = DTYPES[dtype][1] * math.prod(self.shape)

    def pieces(self) -> Iterator[memoryview]:
        """Yields the bytes, each piece until the next; a mean is summed in float64, in the files' order."""
        count, whole = math.prod(self.shape), sum(self._shares)
        # Made once: fresh memory for each piece would cost more than its sums.
        kept = [np.empty(min(count, PIECE_VALUES), kind) for kind in (np.float32, np.float64, np.float64)]
        for start in range(0, count, PIECE_VALUES):
            values, total, product = (each[: count - start] for each in kept)
            for n, ((path, begins, _), share) in enumerate(zip(self._saved, self._shares, strict=True)):
                with path.open("rb", buffering=0) as file:
                    file.seek(begins + 4 * (self._first + start))
                    is_whole = file.readinto(values.data) == values.nbytes
                if not is_whole or (len(self._saved) > 1 and not np.isfinite(values).all()):
                    why = "has values that are not finite; leave it out"
                    raise DataError(f"{path.parent}: {self._name} {why}")
                np.multiply(values, share, out=product if n else total, dtype=np.float64)
                if n:
                    np.add(total, product, out=total)
            np.divide(total, whole, out=values, casting="same_kind")  # of one its own bits
            yield (_bfloat16(values) if self._dtype == "bfloat16" else values).data


def _tensors_of(one: Input, stem: str, wanted: set[str]) -> dict[str, _Place]:
    """Returns where each of a checkpoint's tensors is; raises DataError where other ones are wanted."""
    found: dict[str, _Place] = {}
    for path in (one.directory / name for name in sorted(one.body.files) if name.startswith(stem)):
        with path.open("rb") as file:
            begins = 8 + int.from_bytes(file.read(8), "little")
            header = parse_json(file.read(begins - 8))
        for name in header.keys() - {"__metadata__"}:
            found[name] = path, begins + header[name]["data_offsets"][0], header[name]["shape"]
    if differing := sorted(found.keys() ^ wanted):
        raise DataError(f"{one.directory} and its model.json differ in tensors, first in {differing[0]}")
    return found


def _write_weights(
    directory: Path, weights: Weights, wanted: Mapping[str, Rows], dtype: str
) -> dict[str, str]:
    """Writes model.safetensors, or several and their index where they are larger than FILE_BYTES."""
    names, shares = {rows.name for rows in wanted.values()}, [one.share for one in weights.inputs]
    found = [_tensors_of(one, STEMS[weights.kind], names) for one in weights.inputs]
    tensors: list[Tensor] = []
    for name, rows in wanted.items():
        part = _Part([each[rows.name] for each in found], shares, rows, dtype)
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
