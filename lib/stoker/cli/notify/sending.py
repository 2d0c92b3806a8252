"""Sends a text on its way: by apprise, by a command, or as the call of a heartbeat."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import threading
from typing import Any

from stoker.cli.notify.messages import Message
from stoker.cli.pipeline.addresses import address_of
from stoker.config.schema import Route
from stoker.config.show import MASK
from stoker.kit.exec import child_environment, launch_command
from stoker.store.errors import UnavailableError

COMMAND_S, HEARTBEAT_S = 30.0, 10.0
KINDS = {"info": "info", "warning": "warning", "error": "failure"}  # as apprise calls the levels
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
        return _run([word.get_secret_value() for word in route.command], f"{message.title}\n{message.text}\n")
    try:
        return _post(address_of(route), message)
    except UnavailableError as problem:
        return str(problem)


def _run(words: list[str], text: str) -> str:
    # As bytes: the text is UTF-8, whatever the locale's encoding is.
    command = [word.replace("{message}", text.strip()).encode(errors="replace") for word in words]
    starter = [os.fsencode(word) for word in launch_command([])]
    settings: Any = {"env": child_environment(), "stdout": subprocess.DEVNULL, "timeout": COMMAND_S}
    try:
        ended = subprocess.run([*starter, *command], input=text.encode(), check=False, **settings)
    except subprocess.TimeoutExpired:
        return f"it did not end within {COMMAND_S:.0f} s"
    except OSError as problem:
        return f"it was not started: {problem.strerror}"
    return f"it ended with exit code {ended.returncode}" if ended.returncode else ""


class _Heard(logging.Handler):
    """Keeps what apprise says of a failure in this thread; nobody else may: it has addresses in it."""

    def __init__(self) -> None:
        super().__init__()
        self.said, self._thread = "", threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        is_cause = said.startswith("Socket Exception")  # no warning names it
        if record.thread == self._thread and (is_cause or record.levelno >= logging.WARNING):
            self.said += f"{said}\n"


def _post(address: str, message: Message) -> str:
    if bundle := os.environ.get("SSL_CERT_FILE"):  # by which the daemons are told of one's own certificates
        os.environ.setdefault("REQUESTS_CA_BUNDLE", bundle)
    from apprise import Apprise

    logger, heard = logging.getLogger("apprise"), _Heard()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(heard)
    try:
        if (service := Apprise.instantiate(address)) is None:
            return "apprise cannot use its address"
        kind = KINDS[message.level]
        is_sent = service.notify(body=message.text, title=message.title, notify_type=kind, body_format="text")
    finally:
        logger.removeHandler(heard)
    return "" if is_sent else answer(heard.said, address)


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
