"""The identity of a shard set: the source's content, and every parameter that changes the set's bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from stoker.corpus.readers.table import Tokens
from stoker.shards.format.steps import STEPS
from stoker.store.errors import DataError
from stoker.store.files import canonical_json

FORMAT_VERSION = 2  # 2: row numbers beside the document ends
VAL_SALT = 0x57_0C_E2  # constant within a format version: another salt makes another split


@dataclass(frozen=True)
class Filters:
    """Which documents are kept: the parameter of each step; lengths in Unicode code points, None = off."""

    min_chars: int | None = None
    max_chars: int | None = None
    languages: tuple[str, ...] | None = None  # values of the column `language`
    at_least: Mapping[str, float] = field(default_factory=dict)  # least value kept, by numeric column
    further: Mapping[str, Any] = field(default_factory=dict)  # parameters of steps that are not named above

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Filters:
        """Parses the filters of a pin or a task; raises TypeError or ValueError where a value is wrong."""
        languages = values.get("languages")
        further = {name: one for name, one in values.items() if name not in _NAMED and one is not None}
        if unknown := further.keys() - STEPS.keys():
            raise ValueError(f"no step is called {', '.join(sorted(unknown))}")
        return cls(
            min_chars=values.get("min_chars"),
            max_chars=values.get("max_chars"),
            languages=None if languages is None else tuple(sorted({str(one) for one in languages})),
            at_least={str(column): float(least) for column, least in (values.get("at_least") or {}).items()},
            further=further,
        )

    def to_mapping(self) -> dict[str, Any]:
        """Returns the parameters as plain JSON values; of further steps those that are on."""
        named: dict[str, Any] = {"min_chars": self.min_chars, "max_chars": self.max_chars}
        named["languages"] = None if self.languages is None else list(self.languages)
        return {**named, "at_least": dict(sorted(self.at_least.items())), **self.further}

    def steps(self) -> dict[str, Any]:
        """Returns the parameters of the steps that are on, in the order of the table."""
        values = self.to_mapping()
        return {name: values[name] for name in STEPS if values.get(name) not in (None, {})}

    def columns(self) -> dict[str, str]:
        """Returns the columns that the filters read besides the text, each as "text" or "number"."""
        read: dict[str, str] = {}
        for name, parameter in self.steps().items():
            if (columns := STEPS[name].columns) is not None:
                read |= columns(parameter)
        return read

    def versions(self) -> dict[str, int]:
        """Returns the versions of the steps that are on, where it is not the first."""
        return {name: STEPS[name].version for name in self.steps() if STEPS[name].version > 1}


_NAMED = {field.name for field in fields(Filters)} - {"further"}


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
    tokens: bool = False  # the text column holds token ids; in the build id only where it does

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> BuildParameters:
        """Parses the parameters of a pin or a task; raises DataError for missing, unknown or wrong values."""
        try:
            known = dict(values)
            versions = known.pop("step_versions", {})
            parameters = cls(**{**known, "filters": Filters.from_mapping(values["filters"])})
            parameters = cls(**{**vars(parameters), "val_ratio": float(parameters.val_ratio)})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"build parameters: {error}; they were written by another version") from error
        if parameters.format_version != FORMAT_VERSION:
            raise DataError(
                f"build parameters of format version {parameters.format_version}, this one builds "
                f"{FORMAT_VERSION}; raise dataset.version to build again"
            )
        if versions != (now := parameters.filters.versions()):
            raise DataError(
                f"build parameters with steps of versions {versions}, where this Stoker has {now} (without a "
                "name: 1); raise dataset.version to build again"
            )
        return parameters

    def to_mapping(self) -> dict[str, Any]:
        """Returns the parameters as plain JSON values, which `from_mapping` parses."""
        plain = {**vars(self), "filters": self.filters.to_mapping(), "step_versions": self.filters.versions()}
        return {name: value for name, value in plain.items() if value or name not in _LATER}

    @property
    def token_rules(self) -> Tokens | None:
        """What the ids of a source must be; None where it is text."""
        return Tokens(self.vocab_size, self.eot, self.dtype) if self.tokens else None

    @property
    def dtype(self) -> str:
        """The token type on disk, little-endian."""
        return dtype_for(self.vocab_size)


_LATER = ("tokens", "step_versions")  # left out where they say nothing: the ids of earlier builds stay


def dtype_for(vocab_size: int) -> str:
    """Returns the smallest token type that holds every id of a vocabulary."""
    return "uint16" if vocab_size <= 65_536 else "uint32"


def build_id(parameters: BuildParameters) -> str:
    """Returns 64 hex digits that change with every parameter that changes bytes."""
    return hashlib.sha256(canonical_json(parameters.to_mapping())).hexdigest()


def set_key(source_sha256: str, build: str) -> str:
    """Returns 64 hex digits that name the one shard set of this source content and build id."""
    return hashlib.sha256(canonical_json({"build_id": build, "source": source_sha256})).hexdigest()
