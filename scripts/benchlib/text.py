"""Distinct text that looks like prose to a tokenizer, made fast: words by Zipf's law, sentences, paragraphs.

Frequent words are those of the Python library's own documentation, rare ones are spelt from their syllables
and there are many of them, so that new ones keep coming as they do in real text.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

COMMON_WORDS, RARE_WORDS = 30_000, 300_000
RARE_SHARE = 0.05
DRAWS = 1 << 22  # entries of the table words are drawn from
ROW_GROUP_ROWS = 1000  # as FineWeb has it
_SEED = 7


def write_prose(path: Path, text_bytes: int, seed: int) -> int:
    """A file of prose in FineWeb's manner; documents of 200 bytes to 60 kB. Returns the bytes of text."""
    return _write(path, _documents(text_bytes, seed), ROW_GROUP_ROWS)


def write_random_words(path: Path, text_bytes: int, seed: int) -> int:
    """Words that no tokenizer has seen and that never come again."""
    return _write(path, _noise(text_bytes, seed), ROW_GROUP_ROWS)


def write_one_row_group(path: Path, text_bytes: int, seed: int) -> int:
    """Prose, all of it in one row group."""
    return _write(path, _documents(text_bytes, seed), 10**9)


def _write(path: Path, documents: Iterator[str], rows_in_a_group: int) -> int:
    done = rows = 0
    kinds = {"text": pa.string(), "id": pa.string(), "language": pa.string(), "language_score": pa.float64()}
    schema = pa.schema(list(kinds.items()))
    with pq.ParquetWriter(path, schema, compression="snappy") as writer:
        parts: list[pa.Table] = []
        for texts in _grouped(documents, min(rows_in_a_group, ROW_GROUP_ROWS)):
            done += sum(len(text.encode()) for text in texts)
            names = [f"<urn:{path.stem}:{rows + n}>" for n in range(len(texts))]
            rows += len(texts)
            columns = [texts, names, ["en"] * len(texts), [0.9] * len(texts)]
            parts.append(pa.table(columns, schema=schema))
            if sum(part.num_rows for part in parts) >= rows_in_a_group:
                writer.write_table(pa.concat_tables(parts))
                parts = []
        if parts:
            writer.write_table(pa.concat_tables(parts), row_group_size=10**9)
    return done


def _grouped(documents: Iterator[str], count: int) -> Iterator[list[str]]:
    group: list[str] = []
    for document in documents:
        group.append(document)
        if len(group) == count:
            yield group
            group = []
    if group:
        yield group


def _documents(text_bytes: int, seed: int) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    words, draws = _lexicon()
    done = 0
    while done < text_bytes:
        drawn = words[draws[rng.integers(0, DRAWS, 1 << 16)]].tolist()
        place = 0
        while place < len(drawn) and done < text_bytes:
            count = int(np.clip(rng.lognormal(5.5, 0.9), 30, 9000))
            document = " ".join(drawn[place : place + count])
            place += count
            done += len(document.encode())
            yield document


def _noise(text_bytes: int, seed: int) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
    done = 0
    while done < text_bytes:
        size = int(np.clip(rng.lognormal(7.5, 0.9), 200, 60_000))
        text = letters[rng.integers(0, len(letters), size)]
        text[np.cumsum(rng.integers(3, 14, size // 14))] = ord(" ")
        done += size
        yield text.tobytes().decode()


@cache
def _lexicon() -> tuple[npt.NDArray[np.object_], npt.NDArray[np.uint32]]:
    """Words with their punctuation, and a table from which to draw each as often as it comes."""
    rng = random.Random(_SEED)
    common = [word for word, _ in _library_words().most_common(COMMON_WORDS)]
    syllables = sorted({piece for word in common for piece in re.findall("[a-z]{0,2}[aeiou]", word.lower())})
    rare = sorted({"".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(RARE_WORDS)})
    weights = 1 / (np.arange(len(common)) + 2.7)
    starts = [word.capitalize() for word in common[:300]]
    forms, shares = list(rare), [RARE_SHARE / len(rare)] * len(rare)
    for word, weight in zip(common, (weights / weights.sum() * (1 - RARE_SHARE)).tolist(), strict=True):
        start = rng.choice(starts)
        marked = (word, f"{word},", f"{word}. {start}", f"{word}.\n\n{start}", f"({word})", f"{word}'s")
        for form, share in zip(marked, (0.85, 0.06, 0.05, 0.01, 0.01, 0.02), strict=True):
            forms.append(form)
            shares.append(weight * share)
    edges = np.cumsum(shares) / sum(shares)
    draws = np.searchsorted(edges, (np.arange(DRAWS) + 0.5) / DRAWS).astype(np.uint32)
    return np.array(forms, dtype=object), draws


def _library_words() -> Counter[str]:
    """How often words come in the documentation of the Python library on this machine."""
    found: Counter[str] = Counter()
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            tree = ast.parse(file.read_text())
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                found.update(re.findall(r"[A-Za-z\u00c0-\u024f]+|\d+", ast.get_docstring(node) or ""))
    return found
