"""Writes the model of a checkpoint as a directory that Hugging Face transformers loads.

One tensor at a time is read, without torch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

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
SMALL_FILES_BYTES = 32 << 20  # more than a tokenizer and the configuration take


def export_model(checkpoint: Path, files: Mapping[str, int], out: Path) -> str:
    """Writes a proven checkpoint's model to the new directory `out`; returns the name of its architecture.

    `files` are the checkpoint's, with their sizes in bytes. Raises DataError where the checkpoint's tensors
    are not those of its model.json, UsageError where `out` exists, StorageError where there is no room.
    """
    weights = {name: size for name, size in sorted(files.items()) if name.startswith("model-")}
    described = parse_json((checkpoint / "model.json").read_bytes())
    shape = Shape.parse(described, vocab_size=described["vocab_size"], seq_len=described["seq_len"])
    config = config_of(shape, load_tokenizer(checkpoint / "tokenizer.json").eot)
    with (
        reading(checkpoint),
        contextlib.ExitStack() as opened,
        new_directory(out, sum(weights.values()) + SMALL_FILES_BYTES) as directory,
    ):
        saved: dict[str, Any] = {}
        for name in weights:
            file = opened.enter_context(safe_open(checkpoint / name, framework="np"))
            saved |= {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
        _write_weights(directory, saved, rows_of(shape))
        write_json(directory / "config.json", config)
        ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        write_json(directory / "generation_config.json", ids)
        _write_tokenizer(checkpoint / "tokenizer.json", directory, config)
    return str(config["architectures"][0])


class _Part:
    """The bytes of rows, which are read when they are written."""

    def __init__(self, saved: Any, rows: Rows) -> None:
        height, *rest = saved.get_shape()
        self._saved, self._rows = saved, slice(rows.start, height if rows.stop is None else rows.stop)
        self.shape = (self._rows.stop - self._rows.start, *rest)
        self.nbytes = 4 * math.prod(self.shape)  # float32

    def read(self) -> memoryview:
        data: memoryview = self._saved[self._rows].data
        return data


def _write_weights(directory: Path, saved: Mapping[str, Any], wanted: Mapping[str, Rows]) -> None:
    """Writes model.safetensors, or several and their index where they are larger than FILE_BYTES."""
    if differing := sorted(saved.keys() ^ {rows.name for rows in wanted.values()}):
        raise DataError(f"the checkpoint and its model.json differ in tensors, first in {differing[0]}")
    tensors: list[Tensor] = []
    for name, rows in wanted.items():
        part = _Part(saved[rows.name], rows)
        tensors.append(Tensor(name, "F32", part.shape, part))
    groups = split(tensors, FILE_BYTES)
    index: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        name = "model.safetensors"
        if len(groups) > 1:
            name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        index |= {tensor.name: name for tensor in group}
        with Sink(directory / name) as sink:
            for part in file_parts(group, {"format": "pt"}):
                sink.write(part.read() if isinstance(part, _Part) else part)
    if len(groups) > 1:
        total = sum(tensor.data.nbytes for tensor in tensors)
        body = {"metadata": {"total_size": total}, "weight_map": index}
        write_json(directory / "model.safetensors.index.json", body)


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
