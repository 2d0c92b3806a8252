"""The morning line: how it stands, and what the last day was like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

from stoker.cli.notify.due import DAY_S
from stoker.cli.notify.messages import Message
from stoker.cli.options import counts, plural
from stoker.cli.pipeline.status import status_rows
from stoker.config.schema import Pipeline
from stoker.config.units import format_count
from stoker.corpus.quarantine.directory import read_quarantine
from stoker.observe.verdict import verdict
from stoker.store.errors import StokerError
from stoker.store.record import utc_at
from stoker.supervise.outlook import gather
from stoker.supervise.run.launch_ends import read_ends
from stoker.supervise.run.step_rows import rows_of

TAIL_BYTES = 64 << 20  # of a training log: two days of a step a second


def morning_line(pipeline: Pipeline, now: float, local: datetime) -> Message:
    """Returns the message; what cannot be read is said in its place."""
    facts, since = gather(pipeline), utc_at(now - DAY_S)
    judged = verdict(facts)
    lines = [f"needs a hand: {each.what}. {each.do}" for each in judged.hands]
    try:
        lines += _day(pipeline, since)
    except (StokerError, OSError, LookupError, TypeError, ValueError) as problem:
        lines.append(f"what the last day was like cannot be read: {problem}")
    lines += [f"goodput: {text}" for title, text, _ in status_rows(facts, None) if "goodput" in title]
    lines += [f"{work}{' full' * work.endswith(' disk')}: {left}" for work, left in facts.times.items()]
    return Message("info", pipeline.name, judged.text, lines, "daily", then={"day": f"{local:%Y-%m-%d}"})


def _day(pipeline: Pipeline, since: str) -> Iterator[str]:
    """Yields what was trained since then, steps as often as they were made, and how launches ended."""
    run = pipeline.layout.run(pipeline.train.run)
    rows = [
        (int(row["step"]), int(row.get("tokens") or 0))
        for row in rows_of(run.metrics, b'"loss"', tail_bytes=TAIL_BYTES)
        if str(row.get("time")) > since and "loss" in row
    ]
    steps, tokens = (sum(max(0, two[n] - one[n]) for one, two in pairwise(rows)) for n in (0, 1))
    yield f"since yesterday: {f'{format_count(tokens)} tokens, ' if tokens else ''}{plural(steps, 'step')}"
    ends = [one for one in read_ends(run.runs)[0] if (one.end or one.begin) > since]
    yield f"launches that ended: {counts(Counter(one.exit_class or 'not known' for one in ends))}"
    kept = [one for one in read_quarantine(pipeline.layout.quarantine) if one.things or not one.released]
    yield f"in quarantine: {len(kept):,}, new {sum(one.when > since for one in kept):,}"
