"""An entry of the register: what an event word tells a person, in the journal and beside an alert.

In the texts FILE is the pipeline's file, NAME its name, and {path} the event's field `path`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "stoker")
ALL_IS_WELL = "Nothing is wrong; there is nothing to do."


@dataclass(frozen=True)
class Word:
    """A word's usual level and texts: `subject` is a headline, the others are plain sentences.

    `alert` names the section of the runbook whose act `do` is.
    A routine word is one of many alike when all is well: the journal gets the first, then one line a minute.
    """

    level: str
    subject: str
    means: str = ALL_IS_WELL
    check: str = ""
    do: str = ""
    alert: str = ""
    is_routine: bool = False


Words = Mapping[str, Word]


def info(subject: str, means: str = ALL_IS_WELL) -> Word:
    return Word("info", subject, means)


def routine(subject: str) -> Word:
    return Word("info", subject, is_routine=True)


def warning(subject: str, means: str, check: str, do: str, *, alert: str = "") -> Word:
    return Word("warning", subject, means, check, do, alert)


def error(subject: str, means: str, check: str, do: str, *, alert: str = "") -> Word:
    return Word("error", subject, means, check, do, alert)


def message_id(word: str) -> str:
    """Returns the MESSAGE_ID of a word: 32 hex digits, RFC 9562's UUID of version 5."""
    return uuid.uuid5(NAMESPACE, word).hex


def filled(text: str, file: str, name: str, field: Callable[[str], str]) -> str:
    """Returns a text with the pipeline's file and name, and the fields by `field`."""
    of = {"FILE": file, "NAME": name}
    text = re.sub(r"\b(FILE|NAME)\b", lambda word: of[word[0]], text)
    return re.sub(r"\{(\w+)\}", lambda named: field(named[1]), text)
