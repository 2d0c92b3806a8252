"""The routes of `notify`: what is wrong with them, without showing an address."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.config.checks import Fault
from stoker.config.problems import nearest
from stoker.config.schema import Pipeline, Route
from stoker.kit.event_types import event_type, words
from stoker.store.errors import UnavailableError
from stoker.store.layout import DAEMONS


def address_of(route: Route) -> str:
    """Returns the address of a route that is no command; raises UnavailableError where it cannot be read."""
    if route.url is not None:
        return route.url.get_secret_value()
    try:
        return route.url_file.read_text().strip() if route.url_file else ""
    except (OSError, UnicodeDecodeError) as problem:
        why = getattr(problem, "strerror", "it is no text")
        raise UnavailableError(f"{route.url_file} cannot be read: {why}") from problem


def word_faults(pipeline: Pipeline) -> Iterator[Fault]:
    """Yields the words that no daemon records."""
    known = {word for daemon in DAEMONS for word in words(daemon)}
    for n, route in enumerate(pipeline.notify.routes):
        for word in route.words:
            if (row := event_type(word)) is None or row.word not in known:
                hint = (
                    f"did you mean {guess!r}?" if (guess := nearest(word, known)) else "see `stoker events`"
                )
                yield Fault(("notify", "routes", n, "words"), f"{word!r} is no event; {hint}")


def address_faults(pipeline: Pipeline) -> Iterator[Fault]:
    """Yields the addresses that cannot be used. Asks apprise, which takes 44 MiB."""
    for n, route in enumerate(pipeline.notify.routes):
        if not route.command and (fault := _fault(route)):
            yield Fault(("notify", "routes", n, "url" if route.url else "url_file"), fault)


def _fault(route: Route) -> str:
    from apprise import Apprise

    try:
        address = address_of(route)
    except UnavailableError as problem:
        return str(problem)
    scheme = address.partition("://")[0] if "://" in address else ""
    form = "https://appriseit.com/services has the form of each service's"
    return (
        "" if Apprise.instantiate(address) else f"apprise cannot use a {scheme!r} address like this; {form}"
    )


def exposed(pipeline: Pipeline) -> Iterator[Fault]:
    """Yields the files with an address that every user may read."""
    for n, route in enumerate(pipeline.notify.routes):
        file, key = (pipeline.file, "url") if route.url else (route.url_file, "url_file")
        if file is not None and file.exists() and (mode := file.stat().st_mode & 0o777) & 0o004:
            text = f"{file} may be read by every user (mode {mode:04o}): chmod 640 {file}"
            yield Fault(("notify", "routes", n, key), text)
