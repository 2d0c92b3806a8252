"""Checks across keys: contradictions, values that are not supported yet, and the size of the hot disk.

The hot budget is the disk's size less `stage.free_floor`, which Stoker never fills.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from stoker.config.document import KeyPath
from stoker.config.origins import endpoint_fault, glob_fault, repo_fault, revision_fault, token_file_fault
from stoker.config.phase_checks import Rule, phase_notes, phase_rules
from stoker.config.places import overlaps, places
from stoker.config.schema import Evict, Pipeline, Source
from stoker.config.schema_train import External, Train
from stoker.config.sources import SOURCES
from stoker.config.units import format_bytes, format_count, write_count


@dataclass(frozen=True)
class Fault:
    """A key of the pipeline file and its error text."""

    path: KeyPath
    text: str


# What an expression for a trainer's output may name besides the step.
READ_VALUES = ("loss", "val_loss", "lr", "grad_norm", "tokens_per_s")
SEGMENT_SHARE = 3  # the trainer reads a segment, builders fill the next, a rollback may need the last


def faults(pipeline: Pipeline, file_stem: str) -> list[Fault]:
    """Returns every contradiction in a pipeline whose single keys are valid; touches no disk."""
    stem = f"make them equal (the file is then {pipeline.name}.yaml)"
    name = f"{pipeline.name!r} is not the file's name {file_stem!r}; {stem}"
    return [
        *_broken([(pipeline.name != file_stem, "name", name)]),
        *_broken(_places(pipeline)),
        *_broken(_source(pipeline.dataset.source) if pipeline.has_data else ()),
        *_broken(_data(pipeline)),
        *_broken(_training(pipeline)),
        *_broken(_evaluations(pipeline)),
        *_broken(_not_yet(pipeline)),
    ]


# Hoffmann et al. 2022, on models from 70 M parameters on: about 20 tokens a parameter give the lowest loss
# for the computing. Many train on more, for a model that is cheaper to use.
FEWEST_TOKENS, MOST_TOKENS, SMALLEST_STUDIED = 5, 200, 70_000_000


def unusual_tokens(train: Train, vocab_size: int) -> str:
    """Returns a sentence on a horizon far from 20 tokens a parameter; "" for a usual one or a small model."""
    parameters, ratio = train.model.parameters(vocab_size), train.tokens_per_parameter(vocab_size)
    if parameters < SMALLEST_STUDIED or FEWEST_TOKENS <= ratio <= MOST_TOKENS:
        return ""
    better = "a smaller model" if ratio < FEWEST_TOKENS else "a larger model"
    return (
        f"the run's tokens are {ratio:.3g} for each of {format_count(parameters)} parameters, where about 20 "
        f"are usual (Hoffmann et al. 2022): {better} would reach a lower loss with as much computing"
    )


def notes(pipeline: Pipeline, horizon: int | None = None) -> list[Fault]:
    """Returns notes on valid settings that may surprise; `config check` prints them.

    `horizon` is the run's last step, which the file alone does not tell where a run by tokens has begun.
    """
    checkpoint, limit = pipeline.train.checkpoint, pipeline.dataset.limit
    if (external := pipeline.train.external_trainer) is not None:
        return _external_notes(external)
    far = unusual_tokens(pipeline.train, vocabulary(pipeline)) if pipeline.tokenizer.train else ""
    warmup, horizon = pipeline.train.schedule.warmup_steps, horizon or pipeline.train.horizon
    too_long = "" if pipeline.train.steps else _too_long(pipeline.train, horizon)
    return _broken(
        [
            (
                pipeline.warm is None and checkpoint.mirror and "mirror" in checkpoint.model_fields_set,
                "train.checkpoint.mirror",
                "there is no warm to copy checkpoints to: they are on the state's disk alone",
            ),
            (
                pipeline.plan.order == "arrival" and (limit.rows or limit.tokens),
                "plan.order",
                "a limit of rows or tokens is counted in listing order, so the plan follows the listing",
            ),
            (far, "train.steps" if pipeline.train.steps else "train.tokens", far),
            (
                warmup >= horizon,
                "train.schedule.warmup_steps",
                f"{warmup} is not below the run's {horizon} steps; the rate only ever rises",
            ),
            (too_long, "train.schedule.warmup_steps", too_long),
            (
                pipeline.train.ema and (pipeline.train.ema.from_step or 0) >= horizon,
                "train.ema.from_step",
                f"is not below the run's {horizon} steps: there is never an average; lower it",
            ),
            *phase_notes(pipeline.train),
        ]
    )


def _external_notes(external: External) -> list[Fault]:
    told = (
        "without a glob only those checkpoints are sealed that the trainer reports by the client "
        "(stoker client); with none, each launch begins at the beginning"
    )
    return _broken([(not external.checkpoints, "train.external", told)])


def disk_faults(pipeline: Pipeline, hot_bytes: int) -> list[Fault]:
    """Returns the settings that can never work on a hot disk of this size, with numbers."""
    free, size = pipeline.stage.free_floor, format_bytes(hot_bytes)
    floors = {"stage.free_floor": free}
    at_once = {"train.start_when.tokens": pipeline.train.start_when.tokens}
    if pipeline.warm is not None:
        floors["evict.target_free"] = pipeline.evict.target_free or 0
    rules: list[Rule] = []
    for key, floor in floors.items():
        full = f"{format_bytes(floor)} are to stay free on a hot disk of {size}: nothing would ever be staged"
        rules.append((floor >= hot_bytes, key, f"{full} there; lower it"))
    for key, tokens in at_once.items():
        needed, room = tokens * token_bytes(pipeline), f"{size} less {format_bytes(free)}"
        text = (
            f"{tokens} tokens take {format_bytes(needed)}, and hot holds {room} of stage.free_floor; lower it"
        )
        rules.append((needed > max(0, hot_bytes - free), key, text))
    return _broken(rules)


def disk_notes(pipeline: Pipeline, hot_bytes: int) -> list[Fault]:
    """Returns the settings that work badly on a hot disk of this size."""
    budget = hot_bytes - pipeline.stage.free_floor
    segment = pipeline.plan.segment_tokens * token_bytes(pipeline)
    if segment * SEGMENT_SHARE <= budget:
        return []
    most = max(1, budget // SEGMENT_SHARE // token_bytes(pipeline))
    unit = 10 ** max(0, len(str(most)) - 2)  # two significant digits, as a person would write
    why = (
        "shard sets leave for warm only when a whole segment is behind the run"
        if pipeline.warm is not None
        else "it is drawn only once so much is proven, or the data is complete"
    )
    text = (
        f"{format_count(pipeline.plan.segment_tokens)} tokens take {format_bytes(segment)}, more than a "
        f"third of the {format_bytes(budget)} that hot holds above stage.free_floor; {why}. "
        f"At most {write_count(most // unit * unit)} fit well"
    )
    return [Fault(("plan", "segment_tokens"), text)]


def token_bytes(pipeline: Pipeline) -> int:
    return 2 if vocabulary(pipeline) <= 1 << 16 else 4


def vocabulary(pipeline: Pipeline) -> int:
    """Returns the vocabulary size; does not open a given tokenizer, but assumes a large one."""
    return pipeline.tokenizer.train.vocab_size if pipeline.tokenizer.train else 1 << 17


def _broken(rules: Iterable[Rule]) -> list[Fault]:
    keys = ((key.split("."), text) for is_wrong, key, text in rules if is_wrong)
    return [Fault(tuple(int(one) if one.isdigit() else one for one in key), text) for key, text in keys]


def _places(pipeline: Pipeline) -> Iterator[Rule]:
    known = places(pipeline)
    for key, path in known.items():
        yield path == path.parent, key, "is the root of the file system; name a directory of its own"
    for key, text in overlaps({key: path for key, path in known.items() if path != path.parent}):
        yield text, key, text


def _source(source: Source) -> Iterator[Rule]:
    spec = source.spec
    others = {key for each in SOURCES.values() for key in (each.key, *each.others)} - {spec.key, *spec.others}
    has_others = {key for key in others if getattr(source, key) != Source.model_fields[key].default}
    faults = {
        spec.key: "" if getattr(source, spec.key) else f"is required for kind: {source.kind}; {spec.advice}",
        **dict.fromkeys(sorted(has_others), f"means nothing for kind: {source.kind}; remove it"),
    }
    # Values that the hub, or the glob compiler, would refuse.
    answers = {
        "repo": repo_fault(source.repo) if source.repo and not faults.get("repo") else "",
        "revision": revision_fault(source.revision),
        "endpoint": endpoint_fault(source.endpoint) if source.endpoint else "",
        "token_file": token_file_fault(source.token_file.name) if source.token_file else "",
        "include": next(filter(None, map(glob_fault, source.include)), ""),
        "exclude": next(filter(None, map(glob_fault, source.exclude)), ""),
    }
    for key, text in (*faults.items(), *answers.items()):
        yield text, f"dataset.source.{key}", text


def _data(pipeline: Pipeline) -> list[Rule]:
    filters, tokenizer = pipeline.dataset.filters, pipeline.tokenizer
    release, without_warm = pipeline.shard.release, pipeline.warm is None
    least, most = filters.min_chars or 0, filters.max_chars
    too_few = f"{most} is below min_chars {least}: no row is left; change one"
    after_proof = "after_proof is for a pipeline without warm; with one, write after_sync or never"
    after_sync = "after_sync needs warm; set warm, or write after_proof or never"
    evict = "shard sets leave hot for warm only, and there is none; set warm, or remove it"
    both = tokenizer.train is not None and tokenizer.file is not None
    neither = tokenizer.train is None and tokenizer.file is None
    return [
        *(_tokens(pipeline) if pipeline.dataset.tokens_column is not None else ()),
        (most is not None and least > most, "dataset.filters.max_chars", too_few),
        (both, "tokenizer.file", "train and file exclude each other; keep one of the two"),
        (neither, "tokenizer", "needs train or file; write one of the two, or leave tokenizer out"),
        (release == "after_proof" and not without_warm, "shard.release", after_proof),
        (release == "after_sync" and without_warm, "shard.release", after_sync),
        (without_warm and pipeline.evict != Evict(), "evict", evict),
    ]


OF_TOKENS = ("languages", "at_least")  # the filters that read another column than the text


def _tokens(pipeline: Pipeline) -> Iterator[Rule]:
    """Yields the rules of a dataset that is tokens already."""
    dataset = pipeline.dataset
    both = "text_column and tokens_column exclude each other; keep one of the two"
    yield "text_column" in dataset.model_fields_set, "dataset.text_column", both
    trains = "tokens_column needs the tokenizer that made the tokens; name it as tokenizer.file"
    yield pipeline.tokenizer.file is None, "tokenizer", trains
    for key in sorted(dataset.filters.model_fields_set.difference(OF_TOKENS)):
        of_text = "reads text, and dataset.tokens_column holds none; remove it"
        yield getattr(dataset.filters, key) is not None, f"dataset.filters.{key}", of_text


def _training(pipeline: Pipeline) -> Iterator[Rule]:
    train, model, backoff = pipeline.train, pipeline.train.model, pipeline.supervise.backoff
    steps, tokens, batch = train.steps, train.tokens, train.seq_len * train.global_batch
    no_end = "is required; write how many steps the run takes (or train.tokens)"
    yield train.follows_plan and steps is None and tokens is None, "train.steps", no_end
    two_ends = "steps and tokens exclude each other; keep one of the two"
    yield steps is not None and tokens is not None, "train.tokens", two_ends
    too_few = f"{tokens} tokens do not fill one batch of {batch}; raise it"
    yield steps is None and tokens is not None and tokens < batch, "train.tokens", too_few
    micro = train.micro_batch
    odd = f"{micro} does not divide global_batch {train.global_batch}; choose one of its divisors"
    yield isinstance(micro, int) and train.global_batch % micro, "train.micro_batch", odd
    yield from _schedule(train)
    yield from phase_rules(train)
    yield from _external(pipeline)
    for key in ("on_checkpoint", "on_promoted"):
        yield getattr(train, key) is not None and not _words(train, key), f"train.{key}", NO_WORDS
    evaluate = train.evaluate
    evaluates = evaluate.every_steps and evaluate.tokens and pipeline.shard.val_ratio
    blind = "no evaluation would count; set every_steps and tokens here, and shard.val_ratio, or write null"
    yield evaluate.patience and not evaluates, "train.evaluate.patience", blind
    every, every_steps = train.checkpoint.every, train.checkpoint.every_steps
    off = "every and every_steps are both off; set one of the two"
    yield every is None and every_steps is None, "train.checkpoint.every", off
    planless = not train.follows_plan and pipeline.supervise.on_spike == "rollback"
    yield planless, "supervise.on_spike", NO_PLAN
    yield backoff.most < backoff.first, "supervise.backoff.most", "is shorter than first; raise it"
    heads = f"{model.heads} does not divide width {model.width}; change one of the two"
    yield model.width % model.heads, "train.model.heads", heads
    half = model.width // model.heads
    rope = f"width / heads is {half}; RoPE needs it even"
    yield not model.width % model.heads and half % 2, "train.model.heads", rope
    kv_heads = f"{model.kv_heads} does not divide heads {model.heads}; change one of the two"
    yield model.heads % model.kv_heads, "train.model.kv_heads", kv_heads
    taken: dict[int, str] = {}
    for key, port in pipeline.metrics.ports.model_dump().items():
        other = taken.setdefault(port, key)
        clash = f"{port} is also {other}'s; choose another, or 0 for any"
        yield port and other != key, f"metrics.ports.{key}", clash


NO_PLAN = (
    "an external trainer reads no plan, so no windows can be skipped for it; write tell, or have it speak "
    "all of the protocol (train.external.protocol: full)"
)
NO_WORDS = "is empty, or has a quote without its end; write a program and its arguments, or null"


def _words(train: Train, key: str) -> tuple[str, ...]:
    try:
        return train.hook(key)
    except ValueError:
        return ()


def _external(pipeline: Pipeline) -> Iterator[Rule]:
    """Yields the rules of an external trainer."""
    train, external = pipeline.train, pipeline.train.external
    yield train.command == (), "train.command", "is empty; write a program and its arguments, or null"
    alone = "is about an external trainer, and train.command names none; name it there, or remove this"
    yield external is not None and train.command is None, "train.external", alone
    if external is not None and external.protocol == "full":
        for key in ("step", "checkpoints", "quiet", "resume"):
            of_client = "means nothing for protocol: full, by which the trainer reports it; remove it"
            yield key in external.model_fields_set, f"train.external.{key}", of_client
    if (external := train.external_trainer) is None:
        return
    if external.step not in (None, "auto"):
        fault = _expression_fault(external.step)
        yield fault, "train.external.step", fault
    if external.checkpoints is not None:
        fault = _glob_fault(external.checkpoints)
        yield fault, "train.external.checkpoints", fault
    for word in external.resume:
        unknown = set(re.findall(r"\{([^{}]*)\}", word)) - {"path", "step"}
        text = f"{{{', '.join(sorted(unknown))}}} is unknown; {{path}} and {{step}} are filled in"
        yield unknown, "train.external.resume", text
    skips = "rollback skips windows of a plan, and an external trainer reads none; write tell"
    yield pipeline.supervise.on_spike != "tell", "supervise.on_spike", skips
    kept = "must be 0: nothing may leave hot while an external trainer reads it"
    evicts = pipeline.has_data and pipeline.warm is not None and pipeline.evict.target_free != 0
    yield evicts, "evict.target_free", kept


def _expression_fault(text: str) -> str:
    """Returns what is wrong with an expression that is to find a step in a line; "" for nothing."""
    advice = "write one such as 'step (?P<step>[0-9]+)', auto, or null"
    try:
        expression = re.compile(text)
    except (re.error, RecursionError, OverflowError) as problem:
        return f"is no regular expression: {problem}; {advice}"
    if not expression.groups:
        return f"has no group for the step; {advice}"
    unknown = set(expression.groupindex) - {"step", *READ_VALUES}
    names = ", ".join(sorted(unknown))
    return (
        f"has an unknown group {names}; besides step there may be {', '.join(READ_VALUES)}" if unknown else ""
    )


def _glob_fault(glob: str) -> str:
    """Returns what is wrong with a glob for checkpoints; "" for nothing."""
    parts = PurePosixPath(glob).parts
    if not parts or parts[-1] in ("/", "**"):
        return "names no file or directory; write one such as 'out/checkpoint-*'"
    up = "has '..'; write the directory itself, by an absolute path where it lies elsewhere"
    return up if ".." in parts else ""


def _schedule(train: Train) -> Iterator[Rule]:
    schedule = train.schedule
    if schedule.decay is None:
        return
    name = schedule.name
    yield name != "wsd", "train.schedule.decay", f"means nothing for name: {name}; remove it, or name wsd"
    yield not schedule.decay, "train.schedule.decay", "must be above 0; without a decay, write name: constant"
    too_long = _too_long(train, train.horizon)
    yield train.steps and too_long, "train.schedule.warmup_steps", too_long


def _too_long(train: Train, horizon: int) -> str:
    """Returns what is wrong with a warm-up that lasts into the decay of wsd; "" for nothing."""
    warmup, begins = train.schedule.warmup_steps, train.schedule.decay_begins(horizon)
    if not train.schedule.decay or begins is None or warmup <= begins:
        return ""
    return (
        f"{warmup} steps of warm-up and {horizon - begins} of decay are more than the run's {horizon}; "
        "lower warmup_steps or decay"
    )


def _evaluations(pipeline: Pipeline) -> Iterator[Rule]:
    promote, names = pipeline.promote, [one.name for one in pipeline.evaluations]
    external = "an external trainer's checkpoints hold no model that Stoker knows; remove it"
    yield names and not pipeline.train.follows_plan, "evaluations", external
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield True, "evaluations", f"two suites have the name {name}; give the one another file name"
    never = "no suite is ever due; write at, every_steps or every_checkpoints for one in evaluations"
    is_timed = any(one.has_time for one in pipeline.evaluations)
    yield (names or promote) and not is_timed, "evaluations" if names else "promote", never
    ends = {one.has_time for one in pipeline.evaluations if one.where == "between"}
    none = "no launch ends for a suite with where: between and no time of its own; write every_steps or at"
    yield is_timed and ends == {False}, "evaluations", none
    unknown = is_timed and promote and promote.gate not in (None, *names)
    yield unknown, "promote.gate", f"is none of evaluations, which lists {', '.join(names)}; add it"


def _not_yet(pipeline: Pipeline) -> Iterator[Rule]:
    """Yields the values that this version does not support: refused, never ignored in silence."""
    train = pipeline.train
    text = "this version trains in one process only; write 1"
    yield train.launcher.processes > 1, "train.launcher.processes", text
