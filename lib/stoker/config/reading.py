"""The types of configuration values; each parses the text exactly, or raises ValueError with advice."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    SerializationInfo,
    ValidationInfo,
)

from stoker.config import units
from stoker.config.document import Plain

_YES = frozenset({"true", "yes", "on"})
_NO = frozenset({"false", "no", "off"})
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_OF_SHELL = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1"})
_SEXAGESIMAL = re.compile(r"\d+(:\d\d?)+(\.\d*)?")


def _scalar(value: object, wanted: str) -> str:
    if isinstance(value, str) and value:
        return value
    if value is None or value == "":
        raise ValueError(f"has no value; write {wanted}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    kinds: dict[type, str] = {dict: "a mapping", list: "a list", tuple: "a list", bool: "true or false"}
    raise ValueError(f"is {kinds.get(type(value), 'not a value')}; write {wanted}")


def _no_clock_time(text: str) -> str:
    if _SEXAGESIMAL.fullmatch(text):
        raise ValueError(
            f"{text!r} reads as a number to base 60 in YAML; write a duration as 12h30m, a number in digits"
        )
    return text


def read_text(value: object) -> str:
    """Reads text; refuses unquoted text that YAML would take for another type."""
    text = _scalar(value, "text")
    if isinstance(text, Plain) and (text.yaml_type() != "str" or _NUMBER.fullmatch(text)):
        kind = {"bool": "true or false", "int": "a number", "float": "a number", "timestamp": "a date"}
        meant = kind.get(text.yaml_type(), "a number")
        raise ValueError(f'{str(text)!r} without quotes means {meant} in YAML; put it in quotes: "{text}"')
    return str(text)


def read_word(value: object) -> str:
    """Reads a word of a command as it is written: a number or a `true` without quotes is a text, too."""
    text = str(_scalar(value, "a word"))
    if "\0" in text:
        raise ValueError("holds a NUL character; remove it")
    return text


def read_words(value: object) -> object:
    """Reads the words of a command: a list, or one text in words as a shell reads them; no shell runs it."""
    if not isinstance(value, str):
        return value
    try:
        words = shlex.split(value)
    except ValueError as problem:
        raise ValueError(f"{value!r} has a quote without its end; write a list of words") from problem
    if of_shell := sorted(_OF_SHELL.intersection(words)):
        raise ValueError(f"{of_shell[0]!r} is for a shell, and none runs this; name a script")
    return words


def read_flag(value: object) -> bool:
    """Reads true or false, in any of YAML's spellings."""
    if isinstance(value, bool):
        return value
    text = _scalar(value, "true or false")
    if text.lower() not in _YES | _NO:
        raise ValueError(f"{text!r} is not true or false; write one of the two")
    return text.lower() in _YES


def read_count(value: object) -> int:
    """Reads a whole number, with a unit K, M, B or T."""
    return units.parse_count(_no_clock_time(_scalar(value, "a whole number")))


def read_size(value: object) -> int:
    """Reads a size, in bytes."""
    return units.parse_size(_no_clock_time(_scalar(value, "a size like 64MiB")))


def read_duration(value: object) -> float:
    """Reads a duration, in seconds; text needs a unit unless it is 0, a float from code needs none."""
    if isinstance(value, float):
        return value
    return units.parse_duration(_no_clock_time(_scalar(value, "a duration like 30s")))


def read_number(value: object) -> float:
    """Reads a decimal number; unlike YAML 1.1 also 3e-4 without a point."""
    text = _no_clock_time(_scalar(value, "a number"))
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a number; write one like 0.1 or 3.0e-4")
    if re.match(r"[+-]?0\d", text):
        raise ValueError(f"{text!r} begins with 0, which YAML takes for an octal number; drop the 0")
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is larger than any number; write one like 0.1 or 3.0e-4")
    return number


def read_path(value: object, info: ValidationInfo) -> Path:
    """Reads a path, made absolute from the directory of the pipeline file. Touches no disk."""
    text = str(value) if isinstance(value, Path) else read_text(value)
    if text.startswith(("~", "$")):
        raise ValueError(f"{text!r}: `{text[0]}` is not expanded; write the whole path")
    if re.search(r"[\0\r\n]", text):  # a line break would end the line of a unit
        raise ValueError("holds a NUL character or a line break; remove it")
    base = (info.context or {}).get("directory", Path("/"))
    return Path(os.path.normpath(base / text))


def read_auto_or_count(value: object) -> int | str:
    """Reads `auto`, or a whole number of at least 1."""
    if value != "auto" and (count := read_count(value)) < 1:
        raise ValueError("must be auto, or 1 or more")
    return "auto" if value == "auto" else count


def read_step_or_decay(value: object) -> int | str:
    """Reads `decay`, or a step of at least 1."""
    if value != "decay" and (count := read_count(value)) < 1:
        raise ValueError("must be decay, or 1 or more")
    return "decay" if value == "decay" else count


def read_devices(value: object) -> object:
    """Reads `auto` alone."""
    if value != "auto":
        raise ValueError("this version does not choose devices yet; write auto")
    return value


def read_epochs(value: object) -> int | None:
    """Reads a number of epochs of at least 1; returns None for `unlimited`."""
    count = None if value in (None, "unlimited") else read_count(value)
    if count is not None and count < 1:
        raise ValueError("must be unlimited, or 1 or more")
    return count


def read_follow(value: object) -> object:
    """Reads `false` or `new_commits`."""
    if value != "new_commits" and str(value).lower() not in _NO:
        raise ValueError(f"{value!r} is neither false nor new_commits; write one of the two")
    return value if value == "new_commits" else False


def read_precision(value: object) -> object:
    """Replaces the common short name of a floating-point format by torch's name."""
    if not isinstance(value, str):
        return value
    if value.lower().startswith(("fp16", "float16", "half", "fp8", "float8", "e4m3", "e5m2")):
        raise ValueError(f"this version does not train in {value!r}; write auto, float32 or bfloat16")
    return {"fp32": "float32", "bf16": "bfloat16"}.get(value, value)


def read_zone(value: object) -> str:
    """Reads the name of a time zone in the IANA's database."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - 300 KB that a daemon needs for this alone

    text = read_text(value)
    try:
        ZoneInfo(text)
    except (KeyError, OSError, ValueError) as problem:
        raise ValueError(f"there is no time zone {text!r}; write one like Europe/Berlin") from problem
    return text


def _named(pattern: str, otherwise: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = read_text(value)
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} is not a {otherwise}")
        return text

    return read


# Both are safe as a directory name; the first also as a systemd instance and a metric label.
_name = _named(
    r"[a-z0-9][a-z0-9_-]{0,40}", "name; use at most 41 of a-z, 0-9, _ and -, and begin with a-z or 0-9"
)
_dataset_name = _named(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", "dataset's name; use letters, digits, . _ and -, at most 80 of them"
)
_metric = _named(r"[^/\s]+/[^/\s]+", "metric; write TASK/METRIC, such as heldout/bits_per_byte")

_TIME = r"([01]\d|2[0-3]):[0-5]\d"
_clock = _named(_TIME, "time of day; write one from 00:00 to 23:59, in quotes")
_hours = _named(f"{_TIME}-{_TIME}", "time from one hour to another; write one like 22:00-07:00")

AS_WRITTEN = {"notation": "file"}  # the context of a dump whose values have the notation of the file


def _writer(write: Callable[[Any], str]) -> PlainSerializer:
    """Returns a serializer that applies `write` in a dump AS_WRITTEN, and changes no value in others."""

    def serialized(value: Any, info: SerializationInfo) -> Any:
        if info.context != AS_WRITTEN:
            return value
        written = write(value)
        return int(written) if written.isdigit() else written

    return PlainSerializer(serialized)


_Count = Annotated[int, BeforeValidator(read_count), _writer(units.write_count)]
_Size = Annotated[int, BeforeValidator(read_size), _writer(units.write_size)]
_Duration = Annotated[float, BeforeValidator(read_duration), _writer(units.write_duration)]
Number = Annotated[float, BeforeValidator(read_number)]

Text = Annotated[str, BeforeValidator(read_text)]
Words = Annotated[tuple[Annotated[str, BeforeValidator(read_word)], ...], BeforeValidator(read_words)]
Secret = Annotated[SecretStr, BeforeValidator(read_text)]
SecretWord = Annotated[SecretStr, BeforeValidator(read_word)]
SecretWords = Annotated[tuple[SecretWord, ...], BeforeValidator(read_words)]
Clock = Annotated[str, BeforeValidator(_clock)]
Hours = Annotated[str, BeforeValidator(_hours)]
Zone = Annotated[str, BeforeValidator(read_zone)]
Name = Annotated[str, BeforeValidator(_name)]
DatasetName = Annotated[str, BeforeValidator(_dataset_name)]
MetricName = Annotated[str, BeforeValidator(_metric)]
Flag = Annotated[bool, BeforeValidator(read_flag)]
FilePath = Annotated[Path, BeforeValidator(read_path)]
Natural = Annotated[_Count, Field(ge=0)]
Positive = Annotated[_Count, Field(ge=1)]
Size = Annotated[_Size, Field(ge=0)]
PositiveSize = Annotated[_Size, Field(ge=1)]
Seconds = Annotated[_Duration, Field(ge=0)]
PositiveSeconds = Annotated[_Duration, Field(gt=0)]
Factor = Annotated[Number, Field(ge=1)]
PositiveNumber = Annotated[Number, Field(gt=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
ShareBelowOne = Annotated[Number, Field(ge=0, lt=1)]
AutoOrCount = Annotated[int | Literal["auto"], BeforeValidator(read_auto_or_count)]
StepOrDecay = Annotated[int | Literal["decay"], BeforeValidator(read_step_or_decay)]
Precision = Annotated[Literal["auto", "float32", "bfloat16"], BeforeValidator(read_precision)]
Devices = Annotated[Literal["auto"], BeforeValidator(read_devices)]
Epochs = Annotated[int | None, BeforeValidator(read_epochs)]
Follow = Annotated[Literal[False, "new_commits"], BeforeValidator(read_follow)]


class Section(BaseModel):
    """A mapping of the file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, protected_namespaces=())
