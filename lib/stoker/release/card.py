"""What a bundle says of its model: the facts that a checkpoint has of its training, and its maker's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from stoker.checkpoints.format import PLAN_COPY, TIMELINES_COPY, CheckpointBody
from stoker.checkpoints.retention import History
from stoker.cli.model_weights import Weights
from stoker.kit.terminal import harmless
from stoker.plan.log import read_plan
from stoker.plan.positions import Position, books
from stoker.plan.timelines import Timelines, ancestry, read_timelines, skips
from stoker.store.errors import DataError, UsageError, storage_errors
from stoker.store.layout import RunLayout
from stoker.store.record import parse_json, read_record
from stoker.supervise.evaluation.lines import newest, read_lines
from stoker.supervise.run.early_stop import newest_evaluation, read_evaluations
from stoker.supervise.run.record import parse_record

MOST_BYTES = 1 << 20  # of a maker's text
TEMPLATE = Path(__file__).with_name("card.md")
# Facts that the card has in other places, or not at all.
ELSEWHERE = ("v", "license", "proven", "versions", "evaluations", "average")
DATA = ("windows_applied", "windows_skipped", "epochs_begun", "shard_sets")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
_MARKUP = re.compile(r"([!-/:-@\[-`{-~])")


class About(NamedTuple):
    """A maker's words: the card's front matter (YAML) with the licence, the text, and the licence or None."""

    front_matter: str
    text: str
    license: str | None


def read_about(file: Path | None, license_id: str | None) -> About:
    """Returns what a markdown file with optional front matter says; the licence may stand in either place.

    Raises DataError where the file's content is wrong, UsageError where it is no file or says another
    licence.
    """
    import yaml
    from huggingface_hub import ModelCard, ModelCardData

    metadata: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    try:
        text = "" if file is None else _text(file)
        if text.startswith("---"):
            card = ModelCard(text)
            text, metadata = card.text, metadata | yaml.safe_load(card.data.to_yaml())
        named = metadata.get("license", license_id)
        front_matter = ModelCardData(**{**metadata, "license": named}).to_yaml()
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise DataError(f"{file}: {error}; write markdown in UTF-8, its front matter in YAML") from error
    if named is not None and not (isinstance(named, str) and _LICENSE.fullmatch(named)):
        wrong, where = (DataError, file) if "license" in metadata else (UsageError, "--license")
        raise wrong(f"{where}: the license {named!r} is no id such as apache-2.0; the hub lists the ids")
    if license_id not in (None, named):
        raise UsageError(f"{file} says license: {named}, --license {license_id}; leave out one of them")
    return About(front_matter, text.strip(), named)


def _text(file: Path) -> str:
    if not file.is_file():
        raise UsageError(f"{file} is no file; name the markdown file about the model's use and limits")
    with storage_errors("read", file):
        data = file.read_bytes()
    if b"\0" in data or len(data) > MOST_BYTES:
        raise ValueError(f"it has a NUL, or more than {MOST_BYTES:,} bytes")
    return data.decode("utf-8-sig")


def facts_of(weights: Weights) -> dict[str, Any]:
    """Returns what a proven checkpoint knows, None for what it does not; no path, host name or time.

    Of a mean it is the last of them; neither that nor an average of training has its measurements.
    """
    directory, body = weights.newest.directory, weights.newest.body
    timelines = read_timelines(directory / TIMELINES_COPY)
    measured = _heldout(directory.resolve(), body, timelines)
    model = parse_json((directory / "model.json").read_bytes())  # a phase may have lengthened its context
    record = {**(body.raw.get("run_record") or {}), "seq_len": model["seq_len"]}
    return {
        "v": 1,
        **{name: body.raw.get(name) for name in ("run", "run_id", "step", "timeline", "tokens")},
        **{name: record.get(name) for name in ("seq_len", "seed", "dataset", "dataset_version", "build_id")},
        **_data(directory, body, timelines),
        **(dict.fromkeys(measured) if weights.about else measured),
        "tokenizer_sha256": body.files["tokenizer.json"].sha256,
        "checkpoint_sha256": weights.newest.digest if len(weights.inputs) == 1 else None,
        "evaluations": _evaluations(directory.resolve(), ancestry(timelines, body.timeline), weights.digest),
        **weights.about,
    }


def _evaluations(directory: Path, history: History, digest: str) -> list[dict[str, Any]]:
    """Returns what the checkpoint's evaluations found, the newest of each suite."""
    lines, _ = read_lines(RunLayout(directory.parent.parent).evaluations_log, history)
    valid = [asdict(line) for line in newest(lines, digest).values() if line.invalid is None]
    return [{name: line[name] for name in ("suite", "suite_digest", "metrics")} for line in valid]


def _data(directory: Path, body: CheckpointBody, timelines: Timelines) -> dict[str, int | None]:
    """Returns the accounts of the plan at the checkpoint, as the audit recounts them."""
    plan, position = read_plan(directory / PLAN_COPY), Position(*body.position)
    if not plan.entries:
        return dict.fromkeys(DATA)
    account = books(plan, position, skips(timelines, body.timeline))
    begun = [segment for segment in plan.segments if segment.n <= position.entry]
    epochs = max((segment.epoch + 1 for segment in begun), default=0)
    sets = {key for segment in begun for key, _ in segment.sets}
    return dict(zip(DATA, (account.applied, account.skipped, epochs, len(sets)), strict=True))


def _heldout(directory: Path, body: CheckpointBody, timelines: Timelines) -> dict[str, float | None]:
    """Returns the newest held-out loss up to the checkpoint; its standard error is in the run's log alone."""
    run = RunLayout(directory.parent.parent)
    try:
        is_its = parse_record(read_record(run.record), run.record).identity.run_id == body.raw.get("run_id")
    except (OSError, DataError):
        is_its = False
    found = read_evaluations(run.metrics, ancestry(timelines, body.timeline), body.step) if is_its else {}
    step, loss = newest_evaluation(found) or (None, body.raw.get("val_loss"))
    stderr = None if step is None else found[step][1]
    return {"heldout_loss": loss, "heldout_stderr": stderr, "heldout_step": step}


def card_of(about: About, facts: Mapping[str, Any]) -> bytes:
    """Returns the model card: the maker's words as they are; other words, which may be anybody's, as text."""
    import jinja2
    from huggingface_hub import ModelCard

    told = {name.replace("_", " "): value for name, value in facts.items() if name not in ELSEWHERE}
    body = jinja2.Template(TEMPLATE.read_text()).render(
        title=f"{_plain(facts['run'])}, step {facts['step']:,}",
        about=about.text,
        proven=facts["proven"],
        evaluations=facts.get("evaluations", ()),
        average=facts.get("average", ()),
        plain=_plain,
        rows=[(name, _plain(value)) for name, value in told.items() if value is not None],
        unknown=[name for name, value in told.items() if value is None],
    )
    return str(ModelCard(f"---\n{about.front_matter}\n---\n\n{body}\n")).encode()


def _plain(value: object) -> str:
    """Returns a value without markup; numbers for people."""
    return f"{value:,}" if isinstance(value, int | float) else _MARKUP.sub(r"\\\1", harmless(str(value)))
