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

from stoker.cli.notify.due import Progress, caught_up, due, is_morning, judged_for
from stoker.cli.notify.messages import Event, Message, of_event, of_left_out
from stoker.cli.notify.sending import call, send
from stoker.cli.notify.sent import SentRecord, read_events
from stoker.cli.options import one_line, pipeline_file
from stoker.cli.pipeline.addresses import address_faults, word_faults
from stoker.config.load import refuse
from stoker.config.schema import Pipeline
from stoker.kit.lock import hold_directory, take_up_state
from stoker.observe.verdict import Finding, Verdict, verdict
from stoker.store.errors import StokerError
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
        return 0
    if test:
        return _test(pipeline)
    if not (events := pipeline.layout.events("").parent).is_dir():
        take_up_state(pipeline)
    # Not a lock's file: the disk may be full, or another user may have made it.
    with hold_directory(events, f"another `stoker notify {pipeline.file}` runs; wait for it"):
        Call(pipeline).run()
    return 0


def _test(pipeline: Pipeline) -> int:
    """Sends a test on each route and prints what each answers; returns 1 if one fails."""
    test = Message("info", pipeline.name, "a test", ("`stoker notify --test` sent this.",), "test")
    ways = {f"notify.routes[{n}]": partial(send, one, test) for n, one in enumerate(pipeline.notify.routes)}
    if (page := pipeline.notify.heartbeat) is not None:
        ways["notify.heartbeat"] = partial(call, page.get_secret_value())
    answers = dict.fromkeys(ways, f"no answer within {CALL_S:.0f} s")
    together([partial(lambda way: answers.update({way: ways[way]()}), way) for way in ways])
    for way, why in answers.items():
        say(f"{way}: {why or 'it arrived'}", is_answer=True)
    return int(any(answers.values()))


def together(jobs: Sequence[Callable[[], object]]) -> None:
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


def say(text: str, *, is_answer: bool = False) -> None:
    """Prints a text on one line that a terminal of any encoding can show."""
    shown = one_line(text if is_answer else f"stoker notify: {text}")
    click.echo(shown.encode("ascii", "backslashreplace"), err=not is_answer)


class Call:
    """One call, from what is known to what was sent."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.routes, self.now = pipeline, pipeline.notify.routes, time.time()
        zone = pipeline.notify.timezone
        self.local = datetime.fromtimestamp(self.now, ZoneInfo(zone) if zone else None)
        self.record = SentRecord(pipeline)

    def run(self) -> None:
        """Sends what is due; raises ConfigError for an address that cannot be used, after all others."""
        known, logs = self.record.routes, read_events(self.pipeline.layout)
        ends = {each: (log[-1]["seq"], max(one["time"] for one in log)) for each, log in logs.items() if log}
        # What has been is not told on a new route. Where nobody knows what was, it is told, as a digest.
        begun = [*known, *([Progress({} if self.record.is_lost else ends)] * len(self.routes))]
        caught = [caught_up(*each, logs, self.now) for each in zip(self.routes, begun, strict=False)]
        self.record.routes = [progress for progress, _ in caught]
        self.record.write()  # before anything is sent: what cannot be kept would be sent each minute
        trouble, judged = self.record.trouble, None
        found = (Finding("needs a hand", trouble, event="state_unwritable"),) if trouble else ()
        try:
            judged = verdict(replace(seen(self.pipeline), found=found))
        except (StokerError, OSError) as problem:
            say(str(problem))
        jobs = [partial(self._send, n, self._queue(n, each, judged)) for n, (_, each) in enumerate(caught)]
        self.record.write()
        together([*jobs, self._call] if judged and judged.grade != "broken" else jobs)
        if len(known) < len(self.routes) or any(one.failing_since for one in self.record.routes):
            refuse(self.pipeline, [*address_faults(self.pipeline)])

    def _queue(self, n: int, events: Sequence[Event], judged: Verdict | None) -> list[Message]:
        """Returns what waits for a route: these events, a changed verdict and the morning line."""
        about = str(self.pipeline.file), self.pipeline.name
        least, progress = self.routes[n].least, self.record.routes[n]
        queue = [of_left_out(progress.left_out, *about)] if progress.left_out else []
        queue += [of_event(event, *about) for event in events]
        if least is None:
            return queue
        if judged is not None:
            words = {message.word for message in queue}
            self.record.routes[n], changed = judged_for(least, progress, judged, words, self.pipeline.name)
            queue += changed
        if is_morning(progress, self.pipeline.notify.daily, self.local):
            from stoker.cli.notify.morning import morning_line

            queue.append(morning_line(self.pipeline, self.now, self.local))
        return queue

    def _send(self, n: int, waiting: Sequence[Message]) -> None:
        """Sends what is due on a route now, and keeps each that was sent."""
        for message in due(self.routes[n], self.record.routes[n], waiting, self.local):
            why, before = send(self.routes[n], message), self.record.routes[n]
            self.record.routes[n] = before.after(message, self.now, is_sent=not why)
            self.record.write()
            if why:
                if before.failing_since is None:
                    say(f"notify.routes[{n}]: {why}; it is tried each minute, for a day")
                return

    def _call(self) -> None:
        """Calls the heartbeat's page where five minutes are over."""
        page = self.pipeline.notify.heartbeat
        if page is None or 0 <= self.now - self.record.heartbeat < HEARTBEAT_S:
            return
        if why := call(page.get_secret_value()):
            say(f"notify.heartbeat: {why}")
            return
        self.record.heartbeat = self.now
        self.record.write()
