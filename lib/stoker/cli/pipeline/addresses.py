"""The routes of `notify`: where they lead, and what is wrong with them, without showing an address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stoker.cli.options import did_you_mean
from stoker.config.checks import Fault
from stoker.config.schema import Pipeline, Route
from stoker.kit.event_types import event_type, words
from stoker.store.errors import UnavailableError
from stoker.store.layout import DAEMONS


def service_of(route: Route) -> tuple[Any, str]:
    """Returns the service of a route that is no command, and its address. Asks apprise, which takes 44 MiB.

    Raises UnavailableError where there is none.
    """
    from apprise import Apprise

    try:
        secret, file = route.url, route.url_file
        address = secret.get_secret_value() if secret else file.read_text(errors="replace") if file else ""
    except OSError as problem:
        raise UnavailableError(f"{file} cannot be read: {problem.strerror}") from problem
    if not (service := Apprise()).add(address.strip()):
        scheme = address.partition("://")[0] if "://" in address else ""
        raise UnavailableError(
            f"apprise cannot use a {scheme!r} address like this; see appriseit.com/services"
        )
    return service, address


def word_faults(pipeline: Pipeline) -> Iterator[Fault]:
    """Yields the words that no daemon records."""
    known = {word for daemon in DAEMONS for word in words(daemon)}
    for n, route in enumerate(pipeline.notify.routes):
        for word in route.words:
            if (row := event_type(word)) is None or row.word not in known:
                hint = did_you_mean(word, known, "see `stoker events`")
                yield Fault(("notify", "routes", n, "words"), f"{word!r} is no event; {hint}")


def address_faults(pipeline: Pipeline) -> Iterator[Fault]:
    """Yields the addresses that cannot be used."""
    for n, route in enumerate(pipeline.notify.routes):
        try:
            _ = route.command or service_of(route)
        except UnavailableError as problem:
            yield Fault(("notify", "routes", n, "url" if route.url else "url_file"), str(problem))


def exposed(pipeline: Pipeline) -> Iterator[Fault]:
    """Yields the files with an address that every user may read."""
    for n, route in enumerate(pipeline.notify.routes):
        file, key = (pipeline.file, "url") if route.url else (route.url_file, "url_file")
        if file is not None and file.exists() and (mode := file.stat().st_mode & 0o777) & 0o004:
            text = f"{file} may be read by every user (mode {mode:04o}): chmod 640 {file}"
            yield Fault(("notify", "routes", n, key), text)
