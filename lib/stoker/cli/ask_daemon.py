"""Having a daemon do something, or doing it in its place where it is down."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from stoker.config.schema import Pipeline
from stoker.kit.daemon import COMMAND_PURPOSE
from stoker.kit.lock import Lock
from stoker.kit.state_owner import require_own_state
from stoker.store.errors import LockHeld
from stoker.store.requests import Request, file_request, finish_request, pending_requests, read_outcome

POLL_S = 0.2


def see_to(
    pipeline: Pipeline,
    daemon: str,
    verb: str,
    args: Mapping[str, Any],
    condition: Mapping[str, Any] | None = None,
    *,
    do_it: Callable[[Request], Mapping[str, Any]],
    quiet: bool,
) -> dict[str, Any]:
    """File the request and wait for the daemon's answer; where none holds its lock, act on it as it would.

    A daemon that ends before it has answered leaves the request to us.
    """
    become_owner(pipeline)
    layout = pipeline.layout
    asked = file_request(layout, daemon, verb, args, condition)
    while (outcome := read_outcome(layout, asked)) is None:
        try:
            lock = Lock.acquire(layout.lock(daemon), purpose=COMMAND_PURPOSE)
        except LockHeld:
            if not quiet:
                click.echo(f"asked the {daemon.replace('_', ' ')} (request {asked}); waiting", err=True)
            quiet = True
            time.sleep(POLL_S)
            continue
        with lock:
            for request in pending_requests(layout, daemon):
                if request.id == asked:
                    finish_request(layout, daemon, request, do_it(request))
    return outcome


def become_owner(pipeline: Pipeline) -> None:
    """Root writes in a state directory as its owner does: what root owns, the daemons could not change.

    ConfigError where the directory is another pipeline's.
    """
    require_own_state(pipeline)
    if os.geteuid() != 0:
        return
    found = pipeline.state.stat()
    if found.st_uid != 0:
        os.setgroups([])
        os.setgid(found.st_gid)
        os.setuid(found.st_uid)
