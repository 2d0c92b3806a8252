"""Monotonic seconds, which JSON holds relative to now: another process may count them from elsewhere."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, SerializationInfo, ValidationInfo


def _from_now(moment: float, info: SerializationInfo) -> float:
    return moment - float(info.context or 0.0)


def _on_this_clock(seconds: float, info: ValidationInfo) -> float:
    return seconds + float(info.context or 0.0)


# Monotonic seconds; `context` is now, when it is written and when it is read.
Moment = Annotated[float, BeforeValidator(_on_this_clock), PlainSerializer(_from_now)]
