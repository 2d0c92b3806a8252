"""What no single key can tell: keys that contradict each other, and what this version does not do yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stoker.config.apart import nested
from stoker.config.document import KeyPath
from stoker.config.origins import endpoint_fault, glob_fault, repo_fault, revision_fault, token_file_fault
from stoker.config.schema import Evict, Pipeline, Source


@dataclass(frozen=True)
class Fault:
    """A key and what is wrong with it."""

    path: KeyPath
    text: str


# The key that each kind of source cannot do without, and what to write there.
_SOURCE_KEYS = {
    "hub": ("repo", "name the repository, as owner/name"),
    "urls": ("urls_file", 'name the file of lines "URL [sha256]"'),
    "folder": ("path", "name the directory that holds the parquet"),
}
_HUB_ALONE = ("endpoint", "token_file", "repo_type", "revision")


def faults(pipeline: Pipeline, file_stem: str) -> list[Fault]:
    """Every contradiction in a pipeline whose keys are each right; touches no disk."""
    return [
        *_places(pipeline, file_stem),
        *_source(pipeline),
        *_tokenizer(pipeline),
        *_training(pipeline),
        *_release(pipeline),
        *_ports(pipeline),
        *_not_yet(pipeline),
    ]


def _places(pipeline: Pipeline, file_stem: str) -> Iterator[Fault]:
    if pipeline.name != file_stem:
        yield Fault(
            ("name",),
            f"{pipeline.name!r} is not the file's name {file_stem!r}; "
            f"make them equal (the file is then {pipeline.name}.yaml)",
        )
    places = {"state": pipeline.state, "hot": pipeline.hot, "warm": pipeline.warm}
    given = [(key, path) for key, path in places.items() if path is not None]
    for key, path in given:
        if path == path.parent:
            yield Fault((key,), "is the root of the file system; name a directory of its own")
    known = [(key, path) for key, path in given if path != path.parent]
    for index, (key, path) in enumerate(known):
        for other, other_path in known[:index]:
            if path == other_path:
                yield Fault((key,), f"is the same directory as {other}; give each its own")
            elif path in other_path.parents or (other_path in path.parents and other != "state"):
                inner, outer = (key, other) if other_path in path.parents else (other, key)
                yield Fault((key,), f"{inner} lies inside {outer}; give each a directory of its own")
    source = pipeline.dataset.source.path
    if pipeline.dataset.source.kind == "folder" and source is not None:
        yield from (Fault(*found) for found in nested(source, dict(known)))


def _source(pipeline: Pipeline) -> Iterator[Fault]:
    source = pipeline.dataset.source
    at: KeyPath = ("dataset", "source")
    needed, means = _SOURCE_KEYS[source.kind]
    if getattr(source, needed) is None:
        yield Fault((*at, needed), f"is required for kind: {source.kind}; {means}")
    if source.follow and source.kind != "hub":
        yield Fault((*at, "follow"), "new_commits means something for kind: hub only; remove it")
    foreign = {key for key, _ in _SOURCE_KEYS.values()} - {needed}
    for key in sorted(foreign | (set(_HUB_ALONE) if source.kind != "hub" else set())):
        if getattr(source, key) != Source.model_fields[key].default:
            yield Fault((*at, key), f"means nothing for kind: {source.kind}; remove it")
    yield from _origin(source, at)
    memory = pipeline.shard.memory
    if memory.soft > memory.hard:
        yield Fault(
            ("shard", "memory", "soft"), f"{memory.soft} bytes are above hard ({memory.hard}); lower it"
        )
    filters = pipeline.dataset.filters
    if filters.max_chars is not None and (filters.min_chars or 0) > filters.max_chars:
        yield Fault(
            ("dataset", "filters", "max_chars"),
            f"{filters.max_chars} is below min_chars {filters.min_chars}: no row is left; change one",
        )


def _origin(source: Source, at: KeyPath) -> Iterator[Fault]:
    """What a hub, or a glob, could only answer with an error."""
    told = {
        "repo": repo_fault(source.repo) if source.kind == "hub" and source.repo else "",
        "revision": revision_fault(source.revision),
        "endpoint": endpoint_fault(source.endpoint) if source.endpoint else "",
        "token_file": token_file_fault(source.token_file.name) if source.token_file else "",
        "include": next(filter(None, map(glob_fault, source.include)), ""),
        "exclude": next(filter(None, map(glob_fault, source.exclude)), ""),
    }
    yield from (Fault((*at, key), fault) for key, fault in told.items() if fault)


def _tokenizer(pipeline: Pipeline) -> Iterator[Fault]:
    tokenizer = pipeline.tokenizer
    if tokenizer.train is not None and tokenizer.file is not None:
        yield Fault(("tokenizer", "file"), "train and file exclude each other; keep one of the two")
    if tokenizer.train is None and tokenizer.file is None:
        yield Fault(("tokenizer",), "needs train or file; write one of the two, or leave tokenizer out")


def _training(pipeline: Pipeline) -> Iterator[Fault]:
    train = pipeline.train
    if train.steps is None and train.tokens is None:
        yield Fault(("train", "steps"), "is required; write how many steps the run takes (or train.tokens)")
    elif train.steps is not None and train.tokens is not None:
        yield Fault(("train", "tokens"), "steps and tokens exclude each other; keep one of the two")
    elif train.tokens is not None and train.tokens < train.seq_len * train.global_batch:
        batch = train.seq_len * train.global_batch
        yield Fault(("train", "tokens"), f"{train.tokens} tokens do not fill one batch of {batch}; raise it")
    micro = train.micro_batch
    if isinstance(micro, int) and train.global_batch % micro:
        yield Fault(
            ("train", "micro_batch"),
            f"{micro} does not divide global_batch {train.global_batch}; choose one of its divisors",
        )
    if train.checkpoint.every is None and train.checkpoint.every_steps is None:
        yield Fault(
            ("train", "checkpoint", "every"), "every and every_steps are both off; set one of the two"
        )
    if pipeline.supervise.backoff.most < pipeline.supervise.backoff.first:
        yield Fault(("supervise", "backoff", "most"), "is shorter than first; raise it")
    yield from _model(pipeline)


def _model(pipeline: Pipeline) -> Iterator[Fault]:
    model = pipeline.train.model
    at: KeyPath = ("train", "model")
    if model.width % model.heads:
        yield Fault(
            (*at, "heads"), f"{model.heads} does not divide width {model.width}; change one of the two"
        )
    elif model.width // model.heads % 2:
        yield Fault((*at, "heads"), f"width / heads is {model.width // model.heads}; RoPE needs it even")
    if model.heads % model.kv_heads:
        yield Fault(
            (*at, "kv_heads"), f"{model.kv_heads} does not divide heads {model.heads}; change one of the two"
        )


def _release(pipeline: Pipeline) -> Iterator[Fault]:
    release = pipeline.shard.release
    if release == "after_proof" and pipeline.warm is not None:
        yield Fault(
            ("shard", "release"),
            "after_proof is for a pipeline without warm; with one, write after_sync or never",
        )
    if release == "after_sync" and pipeline.warm is None:
        yield Fault(("shard", "release"), "after_sync needs warm; set warm, or write after_proof or never")
    if pipeline.warm is None and pipeline.evict != Evict():
        yield Fault(
            ("evict",), "shard sets leave hot for warm only, and there is none; set warm, or remove it"
        )


def _ports(pipeline: Pipeline) -> Iterator[Fault]:
    taken: dict[int, str] = {}
    for key, port in pipeline.metrics.ports.model_dump().items():
        if port and port in taken:
            yield Fault(
                ("metrics", "ports", key),
                f"{port} is also {taken[port]}'s; choose another, or 0 for any",
            )
        taken.setdefault(port, key)


def _not_yet(pipeline: Pipeline) -> Iterator[Fault]:
    """A value that asks for what is not built is refused here, never passed over in silence."""
    train = pipeline.train
    if train.launcher.processes > 1:
        yield _later(("train", "launcher", "processes"), "trains in one process only; write 1")
    if train.launcher.devices != "auto":
        yield _later(("train", "launcher", "devices"), "does not choose devices yet; write auto")
    if train.command is not None:
        yield _later(("train", "command"), "starts its own trainer only; write null")
    if train.on_checkpoint is not None:
        yield _later(("train", "on_checkpoint"), "runs no command at a checkpoint yet; write null")
    if pipeline.notify:
        yield _later(("notify",), "sends no notifications yet; write []")


def _later(path: KeyPath, text: str) -> Fault:
    return Fault(path, f"this version {text}")


def notes(pipeline: Pipeline) -> list[Fault]:
    """What is allowed but may surprise; `config check` says it."""
    found = []
    checkpoint, limit = pipeline.train.checkpoint, pipeline.dataset.limit
    if pipeline.warm is None and checkpoint.mirror and "mirror" in checkpoint.model_fields_set:
        found.append(
            Fault(
                ("train", "checkpoint", "mirror"),
                "there is no warm to copy checkpoints to: they are on the state's disk alone",
            )
        )
    if pipeline.plan.order == "arrival" and (limit.rows or limit.tokens):
        found.append(
            Fault(
                ("plan", "order"),
                "a limit of rows or tokens is counted in listing order, so the plan follows the listing",
            )
        )
    warmup = pipeline.train.schedule.warmup_steps
    if warmup >= pipeline.train.horizon:
        found.append(
            Fault(
                ("train", "schedule", "warmup_steps"),
                f"{warmup} is not below the run's {pipeline.train.horizon} steps; the rate only ever rises",
            )
        )
    return found
