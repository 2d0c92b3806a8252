"""Sends a request to a daemon and waits for the answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from stoker.config.schema import Pipeline
from stoker.kit.lock import read_holder, require_own_state
from stoker.store.requests import file_request, read_outcome

POLL_S = 0.2


def ask(
    pipeline: Pipeline,
    daemon: str,
    verb: str,
    args: Mapping[str, Any],
    condition: Mapping[str, Any] | None = None,
    *,
    quiet: bool,
    judge: Callable[[], dict[str, Any] | None] = lambda: None,
) -> dict[str, Any]:
    """Files a request; returns the daemon's answer, or `{"filed": id}` where the daemon is not running.

    A daemon that is not running handles the request at its next start. What it would refuse then is refused
    now: `judge` returns that answer, None where only the daemon can judge.
    """
    become_owner(pipeline)
    if read_holder(pipeline.layout.lock(daemon)) is None and (answer := judge()) is not None:
        return answer
    request = file_request(pipeline.layout, daemon, verb, args, condition)
    name, is_said = daemon.replace("_", " "), quiet
    while True:
        holder = read_holder(pipeline.layout.lock(daemon))
        if (outcome := read_outcome(pipeline.layout, request)) is not None:
            return outcome
        if holder is None or holder.purpose != daemon:
            if not quiet:
                click.echo(f"the {name} is not running: it does this at its next start (request {request})")
            return {"filed": request}
        if not is_said:
            click.echo(f"asked the {name} (request {request}); waiting", err=True)
            is_said = True
        time.sleep(POLL_S)


def become_owner(pipeline: Pipeline) -> None:
    """Switches from root to the owner of the state directory: daemons could not change root's files.

    Raises ConfigError where the directory is another pipeline's.
    """
    require_own_state(pipeline)
    if os.geteuid() != 0:
        return
    found = pipeline.state.stat()
    if found.st_uid != 0:
        os.setgroups([])
        os.setgid(found.st_gid)
        os.setuid(found.st_uid)
