"""`stoker notify`: tells people what is due, and ends; a timer calls it each minute, or `stoker run`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from zoneinfo import ZoneInfo

import click

from stoker.cli.notify.due import Event, begun, caught_up, due, is_morning, judged_for, name_of
from stoker.cli.notify.messages import Message, of_event, of_left_out
from stoker.cli.notify.sending import call, send
from stoker.cli.notify.sent import SentRecord, read_events
from stoker.cli.options import one_line, pipeline_file
from stoker.cli.pipeline.addresses import address_faults, exposed, word_faults
from stoker.config.document import dotted
from stoker.config.load import refuse
from stoker.config.schema import Pipeline
from stoker.kit.lock import hold_directory, take_up_state
from stoker.observe.verdict import Finding, verdict
from stoker.store.errors import StokerError
from stoker.store.layout import DAEMONS
from stoker.supervise.outlook import seen

CALL_S = 45.0  # for all that is sent in one call: the next comes after a minute
HEARTBEAT_S = 290.0  # five minutes, less what a timer is early


@click.command(epilog="Example: stoker notify /etc/stoker/fineweb.yaml --test")
@pipeline_file
@click.option("--test", is_flag=True, help="Send a test on each route, and show what each answers.")
def notify(pipeline: Pipeline, test: bool) -> int:
    """Send what FILE's `notify` has due, then end: events, a changed verdict, the morning line.

    A timer of the units calls this each minute, as the daemons' user, and so does `stoker run`. Each event is
    sent at least once, in order; what a route does not take is tried again for a day. Exit code 1: a route
    failed the test. 78: an address or an event's word is wrong.
    """
    refuse(pipeline, [*word_faults(pipeline)])
    if not pipeline.notify.routes and pipeline.notify.heartbeat is None:
        click.echo("nobody is told: notify has neither routes nor a heartbeat")
    elif test:
        return _test(pipeline)
    else:
        if not (events := pipeline.layout.events("").parent).is_dir():
            take_up_state(pipeline)
        # Not a lock's file: the disk may be full, or another user may have made it.
        with hold_directory(events, f"another `stoker notify {pipeline.file}` runs; wait for it"):
            Call(pipeline).run()
    return 0


def _test(pipeline: Pipeline) -> int:
    """Sends a test on each route and prints what each answers; returns 1 if one fails."""
    refuse(pipeline, [*address_faults(pipeline)])
    for warning in exposed(pipeline):
        say(f"warning: {dotted(warning.path)}: {warning.text}")
    lines = ("`stoker notify --test` sent this, and it has arrived.",)
    test = Message("info", pipeline.name, "a test", lines, "test")
    ways = {label(n): partial(send, route, test) for n, route in enumerate(pipeline.notify.routes)}
    if (page := pipeline.notify.heartbeat) is not None:
        ways["notify.heartbeat"] = partial(call, page.get_secret_value())
    answers = dict.fromkeys(ways, f"no answer within {CALL_S:.0f} s")
    together([partial(lambda way: answers.update({way: ways[way]()}), way) for way in ways])
    for way, why in answers.items():
        click.echo(shown(f"{way}: {why or 'it arrived'}"))
    return int(any(answers.values()))


def together(jobs: Sequence[Callable[[], None]]) -> None:
    """Runs each job in a thread of its own; one that hangs is left behind and ends with the process."""
    threading.excepthook = _failed
    end = time.monotonic() + CALL_S
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def _failed(about: threading.ExceptHookArgs) -> None:
    """Tells of an error in a thread; of an unexpected one its kind alone: it may have an address in it."""
    known = isinstance(about.exc_value, StokerError)
    say(str(about.exc_value) if known else f"an error in a way of notify: {about.exc_type.__name__}")


def shown(text: str) -> str:
    """Returns a text on one line that a terminal of any encoding can show."""
    return one_line(text).encode("ascii", "backslashreplace").decode()


def say(text: str) -> None:
    click.echo(f"stoker notify: {shown(text)}", err=True)


def label(n: int) -> str:
    """Returns a route's key: its address is a secret."""
    return dotted(("notify", "routes", n))


class Call:
    """One call, from what is known to what was sent."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.routes, self.now = pipeline, pipeline.notify.routes, time.time()
        zone = pipeline.notify.timezone
        self.local = datetime.fromtimestamp(self.now, ZoneInfo(zone) if zone else None)
        self.record, self._writing = SentRecord(pipeline), threading.Lock()
        self._has_wrong_address = False

    def run(self) -> None:
        """Sends what is due; raises ConfigError for an address that cannot be used, after all others."""
        is_first = len(self.record.routes) < len(self.routes)
        queues = self._queues()
        self.record.write()  # before anything is sent: what cannot be kept would be sent each minute
        is_broken = self._judge(queues)
        for n, (route, progress) in enumerate(zip(self.routes, self.record.routes, strict=True)):
            if route.least is not None and is_morning(progress, self.pipeline.notify.daily, self.local):
                from stoker.cli.notify.morning import morning_line

                queues[n].append(morning_line(self.pipeline, self.now, self.local))
        jobs: list[Callable[[], None]] = [partial(self._send, n, each) for n, each in enumerate(queues)]
        together([*jobs, *([] if is_broken else [self._call])])
        if is_first or self._has_wrong_address:
            refuse(self.pipeline, [*address_faults(self.pipeline)])

    def _queues(self) -> list[list[Message]]:
        """Brings each route up to the logs, a new one to their ends; returns what waits for each."""
        known, name, file = self.record.routes, self.pipeline.name, str(self.pipeline.file)
        logs: dict[str, list[Event]] = {}
        for daemon in DAEMONS:
            places = [progress.places.get(daemon, (0, "")) for progress in known]
            logs[daemon] = read_events(self.pipeline.layout.events(daemon), daemon, places)
        ends = {each: (log[-1]["seq"], max(one["time"] for one in log)) for each, log in logs.items() if log}
        # Where the record is damaged nobody knows what was sent: what the logs have is, as a digest.
        is_lost = self.record.is_damaged and not known
        new = begun({} if is_lost else ends, self.pipeline.notify.daily, self.local)
        pairs = zip(self.routes, [*known, *([new] * len(self.routes))], strict=False)
        caught = [caught_up(route, progress, logs, self.now) for route, progress in pairs]
        self.record.routes = [progress for progress, _ in caught]
        return [
            [
                *([of_left_out(progress.left_out, name, file)] if progress.left_out else []),
                *(of_event(event, name_of(event), file, name) for event in events),
            ]
            for progress, events in caught
        ]

    def _judge(self, queues: list[list[Message]]) -> bool:
        """Adds a changed verdict to what waits; returns whether all is broken, or cannot be judged."""
        trouble = self.record.trouble
        found = (Finding("needs a hand", trouble, event="state_unwritable"),) if trouble else ()
        try:
            judged = verdict(replace(seen(self.pipeline), found=found))
        except (StokerError, OSError) as problem:
            say(str(problem))
            return True
        before = [*self.record.routes]
        for n, queue in enumerate(queues):
            words = {message.word for message in queue}
            pair = self.routes[n], self.record.routes[n]
            self.record.routes[n], changed = judged_for(*pair, judged, words, self.pipeline.name)
            if changed is not None:
                queue.append(changed)
        if self.record.routes != before:
            self.record.write()
        return judged.grade == "broken"

    def _send(self, n: int, waiting: Sequence[Message]) -> None:
        """Sends what is due on a route now, and keeps each that was sent."""
        for message in due(self.routes[n], self.record.routes[n], waiting, self.local):
            why, before = send(self.routes[n], message), self.record.routes[n]
            with self._writing:
                self.record.routes[n] = before.after(message, self.now, is_sent=not why)
                self.record.write()
            if why:
                self._has_wrong_address = True
                if before.failing_since is None:
                    say(f"{label(n)}: {why}; it is tried each minute, for a day")
                return

    def _call(self) -> None:
        """Calls the heartbeat's page where five minutes are over."""
        page = self.pipeline.notify.heartbeat
        if page is None or 0 <= self.now - self.record.heartbeat < HEARTBEAT_S:
            return
        if why := call(page.get_secret_value()):
            say(f"notify.heartbeat: {why}")
            return
        with self._writing:
            self.record.heartbeat = self.now
            self.record.write()
