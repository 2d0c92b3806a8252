"""The identity of a shard set: what was put in, and everything that decides which bytes come out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stoker.store.errors import DataError
from stoker.store.files import canonical_json

FORMAT_VERSION = 2  # 2: row numbers beside the document ends
VAL_SALT = 0x57_0C_E2  # never changes within a format version: another salt is another split


@dataclass(frozen=True)
class Filters:
    """Which documents are kept; lengths in Unicode code points, None = no limit.

    `at_least` maps a numeric column to the least value kept; `languages` are values of column `language`.
    """

    min_chars: int | None = None
    max_chars: int | None = None
    languages: tuple[str, ...] | None = None
    at_least: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Filters:
        """Read them from the pin or a task; raises TypeError or ValueError where one is wrong."""
        languages = values.get("languages")
        return cls(
            min_chars=values.get("min_chars"),
            max_chars=values.get("max_chars"),
            languages=None if languages is None else tuple(sorted({str(one) for one in languages})),
            at_least={str(column): float(least) for column, least in (values.get("at_least") or {}).items()},
        )

    def columns(self) -> dict[str, str]:
        """The columns these filters read besides the text, and what each must hold: "text" or "number"."""
        language = {} if self.languages is None else {"language": "text"}
        return language | dict.fromkeys(sorted(self.at_least), "number")


@dataclass(frozen=True)
class BuildParameters:
    """Everything that changes a shard set's bytes, the source's content aside.

    `tokenizer_sha256` is the tokenizer file's, `vocab_size` one more than its highest id, `eot` the
    end-of-text id, `shard_tokens` the size at which a new shard file begins.
    """

    tokenizer_sha256: str
    vocab_size: int
    eot: int
    text_column: str
    filters: Filters
    val_ratio: float
    shard_tokens: int
    val_salt: int = VAL_SALT
    format_version: int = FORMAT_VERSION

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> BuildParameters:
        """Read them from the pin or a task; raises DataError for missing, unknown or wrong values."""
        try:
            parameters = cls(**{**values, "filters": Filters.from_mapping(values["filters"])})
            parameters = cls(**{**vars(parameters), "val_ratio": float(parameters.val_ratio)})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"build parameters: {error}; they were written by another version") from error
        if parameters.format_version != FORMAT_VERSION:
            raise DataError(
                f"build parameters of format version {parameters.format_version}, this one builds "
                f"{FORMAT_VERSION}; raise dataset.version to build anew"
            )
        return parameters

    def to_mapping(self) -> dict[str, Any]:
        """The parameters as plain JSON values; `from_mapping` reads them back."""
        filters = {**asdict(self.filters), "at_least": dict(sorted(self.filters.at_least.items()))}
        filters["languages"] = None if self.filters.languages is None else list(self.filters.languages)
        return {**asdict(self), "filters": filters}

    @property
    def dtype(self) -> str:
        """The token type on disk, little-endian."""
        return dtype_for(self.vocab_size)


def dtype_for(vocab_size: int) -> str:
    """The smallest token type that holds every id of a vocabulary."""
    return "uint16" if vocab_size <= 65_536 else "uint32"


def build_id(parameters: BuildParameters) -> str:
    """64 hex digits that change with any parameter that changes bytes."""
    return hashlib.sha256(canonical_json(parameters.to_mapping())).hexdigest()


def set_key(source_sha256: str, build: str) -> str:
    """64 hex digits naming the one shard set of this source content and build id."""
    return hashlib.sha256(canonical_json({"build_id": build, "source": source_sha256})).hexdigest()
