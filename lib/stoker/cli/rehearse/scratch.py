"""The pipeline that is rehearsed: made of the real one, in directories beside its own, gone at the end.

Nothing in the real pipeline's directories is written or locked. What a killed rehearsal left is removed by
the next one, once no daemon of it is left.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from stoker.cli.data.list_source import list_source
from stoker.cli.pipeline.prospects import parameters
from stoker.cli.rehearse.figures import chosen
from stoker.config.environment import is_override
from stoker.config.load import load_pipeline
from stoker.config.places import SOURCE, places
from stoker.config.schema import Pipeline
from stoker.config.show import effective_yaml
from stoker.config.units import format_bytes, write_duration
from stoker.kit.lock import Lock, read_holder
from stoker.store.errors import LockHeld, UnavailableError
from stoker.store.files import make_dir, remove_durably, remove_tree, write_atomic
from stoker.store.layout import RuntimeLayout

LOCK = "rehearsal.lock"
ENDLESS = 10**8  # steps: it is stopped before
SAVES_IN_ALL = 60  # within the time: the kills wait for saves
SAVE_BYTES = 4 * 12  # a parameter: weight and two moments, in the newest, the best, one begun, one going
SPARE_BYTES = 256 << 20


@dataclass(frozen=True)
class Scratch:
    """A rehearsal's pipeline, and the environment in which it runs."""

    pipeline: Pipeline
    environment: Mapping[str, str]
    homes: Mapping[str, Path]  # by key: the directory beside the real one
    share: float  # of the whole source that it uses
    source_bytes: int  # of the whole source


@contextlib.contextmanager
def scratch_of(pipeline: Pipeline, minutes: float) -> Iterator[Scratch]:
    """Makes the scratch pipeline; removes all of it at the end, whatever the end is.

    Raises LockHeld where this pipeline is being rehearsed now, UnavailableError where it has no room.
    """
    real = {key: Path(os.path.realpath(path)) for key, path in places(pipeline).items()}
    # A name of the state's own: two rehearsals of it meet.
    name = f"rehearsal-{hashlib.sha256(os.fsencode(real['state'])).hexdigest()[:12]}"
    homes = homes_of(real, name)
    left = {parent / f".{name}" for path in real.values() for parent in path.parents}
    runtime = RuntimeLayout.of(name, real["state"] / name, {}).root  # in a short path, for sockets
    with contextlib.ExitStack() as stack:
        stack.enter_context(Lock.acquire(runtime / LOCK, purpose=f"stoker rehearse {pipeline.file}"))
        for lock in chain(*(home.glob("state/locks/*") for home in left)):
            if holder := read_holder(lock):
                raise LockHeld(f"a killed rehearsal's {holder} has not ended; wait for it")
        stack.callback(remove_tree, runtime)
        for home in filter(os.path.lexists, left):
            remove_durably(home)
        for home in homes.values():
            stack.callback(remove_tree, home)
            make_dir(home, 0o700)
        given = {**os.environ, "RUNTIME_DIRECTORY": str(runtime)}
        environment = {key: value for key, value in given.items() if not is_override(key)}
        yield _made(pipeline, homes, environment, minutes * 60 / SAVES_IN_ALL)


def homes_of(real: Mapping[str, Path], name: str) -> dict[str, Path]:
    """Returns where the scratch of each directory lies: on its disk, outside of all of them."""
    homes = {}
    for key in sorted(real.keys() - {SOURCE}):
        path = real[key]
        outer = (one for one in path.parents if not any(one.is_relative_to(each) for each in real.values()))
        place = next(one for one in outer if one.is_dir())
        if path.exists() and path.stat().st_dev != place.stat().st_dev:
            why = "is a whole disk, with no place for a rehearsal beside it"
            raise UnavailableError(f"{key}: {path} {why}; name a directory on that disk")
        homes[key] = place / f".{name}"
    return homes


def _made(
    pipeline: Pipeline, homes: Mapping[str, Path], environment: Mapping[str, str], every_s: float
) -> Scratch:
    whole = {file.path: file.size or 1 for file in list_source(pipeline).files}  # of unknown sizes: by number
    files = chosen(pipeline, whole)
    if not files:
        raise UnavailableError(f"{pipeline.dataset.source.place} has no files to rehearse with; add data")
    source_bytes, used_bytes = sum(whole.values()), sum(files.values())
    require_room(pipeline, homes, used_bytes)
    file = homes["state"] / f"{homes['state'].name[1:]}.yaml"
    body = yaml.safe_dump(settings(pipeline, homes, files, every_s), sort_keys=False, allow_unicode=True)
    write_atomic(file, body.encode())
    made = load_pipeline(file, environment)
    return Scratch(made, environment, homes, used_bytes / source_bytes, source_bytes)


def settings(
    pipeline: Pipeline, homes: Mapping[str, Path], files: Mapping[str, int], every_s: float
) -> dict[str, Any]:
    """Returns the content of the scratch pipeline's file: the real one's but for what it must not share."""
    body: dict[str, Any] = yaml.safe_load(effective_yaml(pipeline))
    body.pop("notify", None)
    body |= {"name": homes["state"].name[1:], **{key: str(home / key) for key, home in homes.items()}}
    body["metrics"]["ports"] = dict.fromkeys(body["metrics"]["ports"], 0)
    body["dataset"]["source"]["include"] = [re.sub(r"[*?\[\]]", "?", path) for path in files]
    body["dataset"]["limit"] = {"files": len(files)}
    body["plan"]["epochs"] = "unlimited"
    train = body["train"]
    train |= {"steps": ENDLESS, "tokens": None, "on_checkpoint": None}
    train["evaluate"]["patience"] = None
    often = {"every": write_duration(round(every_s, 1)), "every_steps": None, "busy": "skip"}
    train["checkpoint"] |= {**often, "keep_last": 1, "keep_every": None, "milestones": []}
    return body


def require_room(pipeline: Pipeline, homes: Mapping[str, Path], file_bytes: int) -> None:
    """Raises UnavailableError where a disk has no room for a rehearsal with that much parquet.

    A file is fetched, copied to hot and built; `stage.free_floor` stays free.
    """
    needed = 3 * file_bytes + SAVE_BYTES * parameters(pipeline) + SPARE_BYTES + pipeline.stage.free_floor
    for place in {home.parent for home in homes.values()}:
        if needed > (free := shutil.disk_usage(place).free):
            why = f"{format_bytes(needed)} have to be free, stage.free_floor included"
            why = f"{place} has no room for a rehearsal: {why}, and {format_bytes(free)} are"
            raise UnavailableError(f"{why}; free some, or lower that")
