"""The identity of a shard set: the source's content, and every parameter that changes the set's bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stoker.store.errors import DataError
from stoker.store.files import canonical_json

FORMAT_VERSION = 2  # 2: row numbers beside the document ends
VAL_SALT = 0x57_0C_E2  # constant within a format version: another salt makes another split


@dataclass(frozen=True)
class Filters:
    """Which documents are kept; lengths in Unicode code points, None = no limit."""

    min_chars: int | None = None
    max_chars: int | None = None
    languages: tuple[str, ...] | None = None  # values of the column `language`
    at_least: Mapping[str, float] = field(default_factory=dict)  # least value kept, by numeric column

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Filters:
        """Parses the filters of a pin or a task; raises TypeError or ValueError where a value is wrong."""
        languages = values.get("languages")
        return cls(
            min_chars=values.get("min_chars"),
            max_chars=values.get("max_chars"),
            languages=None if languages is None else tuple(sorted({str(one) for one in languages})),
            at_least={str(column): float(least) for column, least in (values.get("at_least") or {}).items()},
        )

    def columns(self) -> dict[str, str]:
        """Returns the columns that the filters read besides the text, each as "text" or "number"."""
        language = {} if self.languages is None else {"language": "text"}
        return language | dict.fromkeys(sorted(self.at_least), "number")


@dataclass(frozen=True)
class BuildParameters:
    """Every parameter that changes a shard set's bytes, besides the source's content."""

    tokenizer_sha256: str  # of the tokenizer file
    vocab_size: int  # the highest id plus 1
    eot: int  # the end-of-text id
    text_column: str
    filters: Filters
    val_ratio: float
    shard_tokens: int  # the size at which a new shard file begins
    val_salt: int = VAL_SALT
    format_version: int = FORMAT_VERSION

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> BuildParameters:
        """Parses the parameters of a pin or a task; raises DataError for missing, unknown or wrong values."""
        try:
            parameters = cls(**{**values, "filters": Filters.from_mapping(values["filters"])})
            parameters = cls(**{**vars(parameters), "val_ratio": float(parameters.val_ratio)})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"build parameters: {error}; they were written by another version") from error
        if parameters.format_version != FORMAT_VERSION:
            raise DataError(
                f"build parameters of format version {parameters.format_version}, this one builds "
                f"{FORMAT_VERSION}; raise dataset.version to build again"
            )
        return parameters

    def to_mapping(self) -> dict[str, Any]:
        """Returns the parameters as plain JSON values, which `from_mapping` parses."""
        filters = {**asdict(self.filters), "at_least": dict(sorted(self.filters.at_least.items()))}
        filters["languages"] = None if self.filters.languages is None else list(self.filters.languages)
        return {**asdict(self), "filters": filters}

    @property
    def dtype(self) -> str:
        """The token type on disk, little-endian."""
        return dtype_for(self.vocab_size)


def dtype_for(vocab_size: int) -> str:
    """Returns the smallest token type that holds every id of a vocabulary."""
    return "uint16" if vocab_size <= 65_536 else "uint32"


def build_id(parameters: BuildParameters) -> str:
    """Returns 64 hex digits that change with every parameter that changes bytes."""
    return hashlib.sha256(canonical_json(parameters.to_mapping())).hexdigest()


def set_key(source_sha256: str, build: str) -> str:
    """Returns 64 hex digits that name the one shard set of this source content and build id."""
    return hashlib.sha256(canonical_json({"build_id": build, "source": source_sha256})).hexdigest()
