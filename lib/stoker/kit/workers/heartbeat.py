"""Signs of life from long reading: a worker that says nothing for long is taken for hung."""

from __future__ import annotations

from collections.abc import Callable

from stoker.kit.throttle import ALIVE_EVERY_S, paced


def heartbeat(report: Callable[..., None], name: str) -> Callable[[int], None]:
    """A progress callback, told bytes, that sends a `progress` message every few seconds at most."""
    return paced(lambda done: report("progress", reading=name, bytes=done), ALIVE_EVERY_S)
