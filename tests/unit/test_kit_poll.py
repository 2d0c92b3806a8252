"""Waiting for descriptors, also for those that select(2) does not know."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from stoker.kit.process import readable

BEYOND_SELECT = 1024


@pytest.fixture
def pipe_beyond_select() -> Iterator[tuple[int, int]]:
    """A pipe whose reading end has a number that select refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= BEYOND_SELECT:
        pytest.skip(f"at most {hard} descriptors are allowed here")
    if soft != resource.RLIM_INFINITY and soft <= BEYOND_SELECT:
        resource.setrlimit(resource.RLIMIT_NOFILE, (BEYOND_SELECT + 1, hard))
    low, writing = os.pipe()
    reading = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, BEYOND_SELECT)
    os.close(low)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_high_descriptor_is_heard(pipe_beyond_select: tuple[int, int]) -> None:
    reading, writing = pipe_beyond_select
    assert readable(reading, timeout_s=0) == set()
    os.write(writing, b"x")
    assert readable(reading) == {reading}


def test_an_end_counts_as_readable() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    try:
        assert readable(reading, timeout_s=0) == {reading}
    finally:
        os.close(reading)
