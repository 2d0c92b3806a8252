"""Tests of what a machine may lack are skipped, and say so loudly."""

from __future__ import annotations

import warnings

import pytest


def unless_missing(what: str, reason: str | None) -> pytest.MarkDecorator:
    """A mark for tests of `what`, which `reason` keeps from running here; None: they run."""
    if reason is not None:
        warnings.warn(f"{what.upper()} NOT TESTED: {reason}", stacklevel=2)
    return pytest.mark.skipif(reason is not None, reason=f"{what} not tested: {reason}")
