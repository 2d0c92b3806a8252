"""Sends a text on its way: by apprise, by a command, or as the call of a heartbeat."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from typing import Any

from stoker.cli.notify.messages import Message
from stoker.cli.persons_command import run_command
from stoker.cli.pipeline.addresses import service_of
from stoker.config.schema import Route
from stoker.config.show import MASK
from stoker.store.errors import UnavailableError

COMMAND_S, HEARTBEAT_S = 30.0, 10.0
# What libraries say, and what of it is told: no secret is in these groups.
ANSWERS = (
    (re.compile(r"certificate verify failed: ([\w ,'.-]+?) \("), "its TLS certificate is not trusted: {}"),
    (re.compile(r"\b(?:error=|HTTP Error )(\d{3})\b"), "it answered HTTP {}"),
    (re.compile(r"(timed out)"), "no answer in time"),
    (re.compile(r"\[Errno -?\d+\] ([A-Z][\w ]+)"), "no answer: {}"),
)


def send(route: Route, message: Message) -> str:
    """Sends a message; returns why it is not sent, "" once it is."""
    if route.command:
        words = [word.get_secret_value() for word in route.command]
        return run_command(words, f"{message.title}\n{message.text}", COMMAND_S, subprocess.DEVNULL)
    if bundle := os.environ.get("SSL_CERT_FILE"):  # by which the daemons are told of one's own certificates
        os.environ.setdefault("REQUESTS_CA_BUNDLE", bundle)
    try:
        service, address = service_of(route)
    except UnavailableError as problem:
        return str(problem)
    logging.getLogger("apprise").setLevel(logging.DEBUG)
    kind = message.level.replace("error", "failure")  # as apprise calls it
    text: Any = {"body": message.text, "title": message.title, "body_format": "text", "notify_type": kind}
    result = service.notify(**text, log_level=logging.DEBUG)
    # No warning names the cause of a failed connection; all else of the details has what was sent.
    said = [one.message for one in result.logs() if one.level != "DEBUG" or one.message.startswith("Socket")]
    return "" if result else answer("\n".join(said), address)


def call(address: str) -> str:
    """Calls the page of a heartbeat; returns what went wrong, "" for an answer."""
    import urllib.request

    try:
        urllib.request.urlopen(address, timeout=HEARTBEAT_S).close()  # noqa: S310 - whose own it is
    except (OSError, ValueError) as problem:
        return answer(str(problem), address)
    return ""


def answer(said: str, address: str) -> str:
    """Returns what went wrong, of what a library said, without any part of the address."""
    for pattern, text in ANSWERS:
        if found := pattern.search(said):
            return text.format(found[1])
    for part in re.findall(r"[^/:@?&=]{3,}", address):
        said = said.replace(part, MASK)
    return f"it was not taken: {said.splitlines()[0] if said else 'no reason is given'}"
