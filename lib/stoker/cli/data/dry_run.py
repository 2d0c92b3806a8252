"""`stoker download --dry-run`: what there is, what is here, how long the rest takes at the measured rate."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from stoker.cli.data.list_source import Listed, list_source
from stoker.cli.data.rate_probe import Measured, measure_fetching, measure_reading
from stoker.cli.data.source_state import Survey, survey_folder, survey_remote
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_duration
from stoker.corpus.records.receipts import read_receipts
from stoker.corpus.source.folder import DEFAULT_INCLUDE
from stoker.store.errors import UnavailableError

SHOWN_REFUSED = 5
EXIT_UNAVAILABLE = 69


def dry_run_of(pipeline: Pipeline) -> int:
    """Print the survey; 69 where files could be listed and not be had.

    Raises UnavailableError where nothing is listed.
    """
    listed = list_source(pipeline)
    if not listed.wanted and not listed.seen:
        raise _nothing(pipeline, listed)
    receipts = read_receipts(pipeline.layout, pipeline.dataset.name)
    is_folder = pipeline.dataset.source.kind == "folder"
    survey = (survey_folder if is_folder else survey_remote)(pipeline, listed, receipts)
    for line in told(pipeline, listed, survey):
        click.echo(line)
    if not (survey.to_read if is_folder else survey.open):
        left = "nothing has to be fetched" if survey.to_hash.files else "nothing is left to do"
        click.echo(left)
        return 0
    found = measure_reading(pipeline, survey) if is_folder else measure_fetching(pipeline, listed, survey)
    for line in time_told(survey, found, pipeline.download.bandwidth):
        click.echo(line)
    return EXIT_UNAVAILABLE if found.final else 0


def _nothing(pipeline: Pipeline, listed: Listed) -> UnavailableError:
    """A source without a file that is meant is a mistake mostly."""
    for line in _refusals(listed):
        click.echo(line)
    globs = ", ".join(pipeline.dataset.source.include or DEFAULT_INCLUDE)
    return UnavailableError(
        f"{listed.origin} holds no file that matches {globs}; correct dataset.source.include and exclude"
    )


def told(pipeline: Pipeline, listed: Listed, survey: Survey) -> Iterator[str]:
    """What there is and what is here, a line each."""
    yield f"source          {listed.origin}" + (f", {listed.revision[:12]}" if listed.revision else "")
    limit = pipeline.dataset.limit
    bounds = [f"{name}: {most:,}" for name, most in limit if most is not None]
    yield f"listed          {survey.all.told()}" + (
        f" (dataset.limit: {', '.join(bounds)})" if bounds else ""
    )
    if limit.rows or limit.tokens:
        yield "                fewer will be needed: how much a file holds is known once it is built"
    yield f"here, verified  {survey.here.told()}"
    for name, pile in (
        ("released", survey.released),
        ("given up", survey.given_up),
        ("to be hashed", survey.to_hash),
    ):
        if pile.files:
            yield f"{name:<15} {pile.told()}"
    if not listed.seen and survey.to_fetch.files:
        saved = f", {format_bytes(survey.saved)} of it here" if survey.saved else ""
        yield f"to be fetched   {survey.to_fetch.told()}{saved}"
        free = _free(pipeline.source_root)
        yield f"into            {pipeline.source_root}, {format_bytes(free)} free"
    yield from _refusals(listed)


def _refusals(listed: Listed) -> Iterable[str]:
    for path, reason in listed.refused[:SHOWN_REFUSED]:
        yield f"refused         {path}: {reason}"
    if (more := listed.refused_in_all - min(SHOWN_REFUSED, len(listed.refused))) > 0:
        yield f"refused         {more:,} more"


def _free(place: Path) -> int:
    """Free bytes of the disk that a place will be on; it need not be there yet."""
    while not place.exists() and place != place.parent:
        place = place.parent
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def time_told(survey: Survey, found: Measured, bandwidth: int | None) -> Iterator[str]:
    """How long the rest takes; of files whose size nobody told by what the first of them have."""
    if found.trouble or not found.rate:
        yield f"rate            {found.trouble or 'nothing came while it was measured'}"
        return
    at_once = f"{found.files} file{'s' * (found.files != 1)} at once"
    yield f"rate            {found.rate / 1e6:,.1f} MB/s, measured over {found.seconds:.1f} s with {at_once}"
    rate = found.rate
    if survey.to_fetch.files and bandwidth is not None and bandwidth < rate:
        rate = bandwidth
        yield f"                download.bandwidth allows {rate / 1e6:,.1f} MB/s"
    fetched = bool(survey.to_fetch.files)
    pile = survey.to_fetch if fetched else survey.to_hash
    if pile.unsized and found.mean_size is None:
        yield "time            not known: the server tells no sizes"
        return
    guessed = pile.unsized * (found.mean_size or 0.0)
    left = pile.bytes + guessed - survey.saved
    if guessed:
        yield f"                about {format_bytes(left)}, if all are as large as the first ones"
    yield f"time            about {format_duration(left / rate)}"
