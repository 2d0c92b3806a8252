"""What the stage-shard loop does next: one pure function from what is known to a tuple of actions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from stoker.corpus.receipts import Receipt
from stoker.corpus.sources import PUBLISHED, Source

Activity = Literal[
    "stage",
    "tokenizer",
    "sample",
    "build",
    "prove",
    "quarantine",
    "release",
    "sync",
    "evict",
    "hydrate",
    "recall",
]

SAMPLERS = 1  # one keeps ahead of many builders: a sample is some 0.1 s of work


@dataclass(frozen=True)
class Limits:
    """How much may go on at once; `queue_*` bound what is staged ahead of the builders.

    `sample` says that a file's engine is chosen by trying a sample of it, before it is built.
    """

    stagers: int
    builders: int
    provers: int
    queue_files: int
    queue_bytes: int
    release: Literal["never", "after_proof", "after_sync"]
    sample: bool = False


@dataclass(frozen=True)
class Room:
    """Bytes that may be given out: for staging a file and building its set, for going on to build one.

    `stage_needs` and `build_needs` tell the bytes that it takes. None for a room that is not known yet.
    `one_build`: the first may begin whatever the estimate says, which nothing was measured for yet.
    """

    stage: int | None
    build: int | None
    stage_needs: Callable[[Source], int]
    build_needs: Callable[[Source], int]
    one_build: bool = False


@dataclass(frozen=True)
class Situation:
    """Everything a decision depends on; times are monotonic seconds.

    `key_of` gives the shard set's key of a content, None before the dataset is pinned. `published` holds
    the keys' first 16 digits of the sets that lie on hot. `busy` tells which activity a path is in.
    `convicted` are the paths that wait for quarantine, `invalid_sets` those whose set on hot does.
    `recallable` are those whose set lies on warm without a record, `to_prove` published ones that somebody
    asked to prove, `urgent` those whose set a run waits for, `wanted` those the tokenizer is to be trained
    on, `shelved` those left alone from now on, `beyond` those that the configured slice of the source leaves
    out. `room` tells what the disk has room for, None where that does not matter.
    """

    receipts: Mapping[str, Receipt]
    sources: Mapping[str, Source]
    limits: Limits
    key_of: Callable[[str], str] | None = None
    published: frozenset[str] = frozenset()
    busy: Mapping[str, str] = field(default_factory=dict)
    convicted: Collection[str] = ()
    invalid_sets: Collection[str] = ()
    recallable: Collection[str] = ()
    urgent: frozenset[str] = frozenset()
    to_prove: Collection[str] = ()
    wanted: frozenset[str] = frozenset()
    shelved: frozenset[str] = frozenset()
    beyond: frozenset[str] = frozenset()
    not_before: Mapping[str, float] = field(default_factory=dict)
    paused_until: Mapping[str, float] = field(default_factory=dict)
    room: Room | None = None


@dataclass(frozen=True)
class Renew:
    """Start the path anew with the content its receipt names."""

    path: str


@dataclass(frozen=True)
class Duplicate:
    """The path's content is that of `of`, which has its shard set."""

    path: str
    of: str


@dataclass(frozen=True)
class Stage:
    """Bring the path's file to hot; `decode` its text as well, to know that a tokenizer can train on it."""

    path: str
    decode: bool


@dataclass(frozen=True)
class Sample:
    """Encode a sample of the path's file with every engine: the fast one builds it only if they agree."""

    path: str


@dataclass(frozen=True)
class Build:
    """Make the path's shard set, or go on making it."""

    path: str


@dataclass(frozen=True)
class Prove:
    """A set with the path's key lies on hot: prove it and take it for built."""

    path: str


@dataclass(frozen=True)
class Quarantine:
    """Set the path's file aside for the finding against it."""

    path: str


@dataclass(frozen=True)
class QuarantineSet:
    """Set aside what stands at the path's target: it is not the set it should be."""

    path: str


@dataclass(frozen=True)
class Release:
    """Remove the path's file from hot: its set is proven, and with a warm disk copied."""

    path: str


@dataclass(frozen=True)
class Withdraw:
    """Take back what was begun of the path's file: it turned out to be beyond the slice."""

    path: str


Action = Renew | Withdraw | Duplicate | Stage | Sample | Build | Prove | Quarantine | QuarantineSet | Release


def decide(situation: Situation, now: float) -> tuple[Action, ...]:
    """The actions to take now, within the limits; taken all, none contradicts another.

    Work is claimed by content: of two paths with the same sha256 one is worked on, the other waits and
    becomes its duplicate once the set is proven.
    """
    renewals: tuple[Action, ...] = tuple(Renew(path) for path in stale(situation))
    if renewals:  # everything else depends on the records being of the content at hand
        return renewals
    return (
        *_withdrawals(situation, now),
        *_duplicates(situation),
        *(Quarantine(path) for path in sorted(situation.convicted) if is_free(situation, path, now)),
        *(QuarantineSet(path) for path in sorted(situation.invalid_sets) if is_free(situation, path, now)),
        *_proofs(situation, now),
        *_stages(situation, now),
        *_samples(situation, now),
        *_builds(situation, now),
        *_releases(situation, now),
    )


def stale(situation: Situation) -> Iterator[str]:
    """Paths whose record speaks of other content than their receipt, where nothing is built of it yet.

    So are the duplicates of a content that has no shard set any more: the set was lost, and the file it was
    made of may be gone or another by now, while theirs is here.
    """
    owners = _owners(situation)
    for path, receipt in situation.receipts.items():
        source = situation.sources.get(path)
        if receipt.state != "verified" or path in situation.busy:
            continue
        if source is None:
            if path not in situation.beyond:
                yield path
            continue
        changed = source.sha256 != receipt.sha256 and source.state not in PUBLISHED
        if changed or (source.state == "duplicate" and source.sha256 not in owners):
            yield path


def changed_after_build(sources: Mapping[str, Source], receipts: Mapping[str, Receipt]) -> list[str]:
    """Paths whose file changed after its set was proven: the set stays, the new content is not built."""
    return [
        path
        for path, source in sources.items()
        if source.state in PUBLISHED
        and (receipt := receipts.get(path)) is not None
        and receipt.state == "verified"
        and receipt.sha256 != source.sha256
    ]


def _owners(situation: Situation) -> dict[str, str]:
    """The path whose set stands for a content, by the content's sha256."""
    return {source.sha256: path for path, source in situation.sources.items() if source.state in PUBLISHED}


def _withdrawals(situation: Situation, now: float) -> Iterator[Withdraw]:
    for path in sorted(situation.beyond & situation.sources.keys()):
        if situation.sources[path].state in ("staged", "building") and is_free(situation, path, now):
            yield Withdraw(path)


def _duplicates(situation: Situation) -> Iterator[Duplicate]:
    owners = _owners(situation)
    for path, source in situation.sources.items():
        free = source.state in ("seen", "staged") and path not in situation.busy
        if free and source.sha256 in owners:
            yield Duplicate(path, owners[source.sha256])


def _open(situation: Situation, path: str, activity: Activity, now: float) -> bool:
    return (
        is_free(situation, path, now)
        and path not in situation.convicted
        and path not in situation.invalid_sets
        and now >= situation.paused_until.get(activity, now)
    )


def is_free(situation: Situation, path: str, now: float) -> bool:
    """Whether work on the path may begin: nothing goes on with it, and it does not wait after a failure."""
    return (
        path not in situation.busy
        and path not in situation.shelved
        and now >= situation.not_before.get(path, now)
    )


def slots(situation: Situation, activity: Activity, most: int) -> int:
    """How many more of an activity may begin."""
    return max(0, most - sum(1 for each in situation.busy.values() if each == activity))


def _is_published(situation: Situation, source: Source) -> bool:
    return situation.key_of is not None and situation.key_of(source.sha256)[:16] in situation.published


def _proofs(situation: Situation, now: float) -> tuple[Prove, ...]:
    owners = _owners(situation)
    paths = [
        path
        for path, source in situation.sources.items()
        if (
            path in situation.to_prove
            if source.state in PUBLISHED
            else source.state in ("seen", "staged", "building") and source.sha256 not in owners
        )
        and _is_published(situation, source)
        and _open(situation, path, "prove", now)
    ]
    once = {situation.sources[path].sha256: path for path in reversed(paths)}
    chosen = [path for path in paths if once[situation.sources[path].sha256] == path]
    return tuple(Prove(path) for path in chosen[: slots(situation, "prove", situation.limits.provers)])


def stageable(situation: Situation, now: float) -> list[str]:
    """The paths to stage next within workers and queue, if only there is room on the disk."""
    limits = situation.limits
    ahead = {
        path: source.size
        for path, source in situation.sources.items()
        if source.state in ("staged", "building") or situation.busy.get(path) == "stage"
    }
    claimed = {situation.sources[path].sha256 for path in (*ahead, *situation.busy)}
    claimed |= _owners(situation).keys()
    chosen: list[str] = []
    most = slots(situation, "stage", limits.stagers)
    # What the tokenizer or a run waits for goes first and past the queue's limits: all else waits for it.
    first = situation.wanted | situation.urgent
    for path in sorted(situation.sources, key=lambda each: (each not in first, each)):
        source, receipt = situation.sources[path], situation.receipts.get(path)
        if len(chosen) == most:
            break
        if source.state != "seen" or receipt is None or receipt.state != "verified":
            continue
        if source.sha256 in claimed or _is_published(situation, source):
            continue
        if path in situation.recallable or path in situation.beyond:
            continue
        full = len(ahead) >= limits.queue_files or sum(ahead.values()) + source.size > limits.queue_bytes
        if ahead and full and path not in first:
            continue
        if _open(situation, path, "stage", now):
            chosen.append(path)
            claimed.add(source.sha256)
            ahead[path] = source.size
    return chosen


def buildable(situation: Situation, now: float) -> list[str]:
    """The paths to build next, if only there is room on the disk; what was begun goes before what was not."""
    ready = _ready(situation, "build", now)
    chosen: list[str] = []
    claimed = {situation.sources[path].sha256 for path in situation.busy if path in situation.sources}
    for path in ready:
        if len(chosen) == slots(situation, "build", situation.limits.builders):
            break
        if situation.sources[path].sha256 not in claimed:
            chosen.append(path)
            claimed.add(situation.sources[path].sha256)
    return chosen


def _ready(situation: Situation, activity: Literal["sample", "build"], now: float) -> list[str]:
    """The staged paths that wait for this activity, in the order in which they are to be built."""
    if situation.key_of is None:
        return []
    sampling = situation.limits.sample
    ready = [
        path
        for path, source in situation.sources.items()
        if source.state in ("staged", "building")
        and (sampling and source.engine is None) == (activity == "sample")
        and path not in situation.beyond
        and not _is_published(situation, source)
        and _open(situation, path, activity, now)
    ]
    first = situation.urgent
    return sorted(
        ready, key=lambda path: (path not in first, situation.sources[path].state != "building", path)
    )


def _samples(situation: Situation, now: float) -> Iterator[Sample]:
    for path in _ready(situation, "sample", now)[: slots(situation, "sample", SAMPLERS)]:
        yield Sample(path)


def _stages(situation: Situation, now: float) -> Iterator[Stage]:
    room = situation.room
    left = None if room is None else room.stage
    for path in stageable(situation, now):
        if room is not None and left is not None:
            left -= room.stage_needs(situation.sources[path])
        if room is not None and (left is None or left < 0):
            return  # nobody overtakes it: a big file would wait for ever
        yield Stage(path, decode=situation.key_of is None)


def _builds(situation: Situation, now: float) -> Iterator[Build]:
    room = situation.room
    left = None if room is None else room.build
    for number, path in enumerate(buildable(situation, now)):
        if room is not None and left is not None:
            left -= room.build_needs(situation.sources[path])
        let = room is None or (number == 0 and room.one_build and left is not None)
        if not let and (left is None or left < 0):
            return
        yield Build(path)


def _releases(situation: Situation, now: float) -> Iterator[Release]:
    ready = {"after_proof": "proven", "after_sync": "synced"}.get(situation.limits.release)
    for path, source in situation.sources.items():
        if source.state == ready and _open(situation, path, "release", now):
            yield Release(path)
