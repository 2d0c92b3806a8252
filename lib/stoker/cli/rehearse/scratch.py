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
from pathlib import Path
from typing import Any, NamedTuple

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

ENDLESS = 10**8  # steps: it is stopped before
SAVES_IN_ALL = 60  # within the time: the kills wait for saves
SAVES = 4  # at once: the newest, the best, one begun, one going
SPARE_BYTES = 256 << 20


class Scratch(NamedTuple):
    """A rehearsal's pipeline."""

    pipeline: Pipeline
    homes: Mapping[str, Path]  # by key: the directory beside the real one
    share: float  # of the whole source that it uses
    source_bytes: int  # of the whole source


@contextlib.contextmanager
def scratch_of(pipeline: Pipeline, minutes: float) -> Iterator[Scratch]:
    """Makes the scratch pipeline; removes all of it at the end, whatever the end is.

    This process's environment becomes that of the rehearsal: what it overrides holds for the real pipeline.
    Raises LockHeld where this pipeline is being rehearsed now, UnavailableError where it has no room.
    """
    real = {key: Path(os.path.realpath(path)) for key, path in places(pipeline).items()}
    # A name of the state's own: two rehearsals of it meet.
    name = f"rehearsal-{hashlib.sha256(os.fsencode(real['state'])).hexdigest()[:12]}"
    homes = homes_of(real, name)
    left = {parent / f".{name}" for path in real.values() for parent in path.parents}
    runtime = RuntimeLayout.of(name, real["state"] / name, {}).root  # in a short path, for sockets
    with contextlib.ExitStack() as stack:
        lock = Lock.acquire(runtime / "rehearsal.lock", purpose=f"stoker rehearse {pipeline.file}")
        stack.enter_context(lock)
        locks = (lock for home in left for lock in home.glob("state/locks/*"))
        if holder := next(filter(None, map(read_holder, locks)), None):
            raise LockHeld(f"a killed rehearsal's {holder} has not ended; wait for it")
        stack.callback(remove_tree, runtime)
        for home in filter(os.path.lexists, left):
            remove_durably(home)
        for home in homes.values():
            stack.callback(remove_tree, home)
            make_dir(home, 0o700)
        os.environ["RUNTIME_DIRECTORY"] = str(runtime)
        for key in filter(is_override, list(os.environ)):
            del os.environ[key]
        yield _made(pipeline, homes, minutes * 60 / SAVES_IN_ALL)


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


def _made(pipeline: Pipeline, homes: Mapping[str, Path], every_s: float) -> Scratch:
    """Writes the scratch pipeline's file: the real one's content but for what it must not share."""
    whole = {file.path: file.size or 1 for file in list_source(pipeline).files}  # of unknown sizes: by number
    files = chosen(pipeline, whole)
    if not files:
        raise UnavailableError(f"{pipeline.dataset.source.place} has no files to rehearse with; add data")
    source_bytes, used_bytes = sum(whole.values()), sum(files.values())
    # A file is fetched, copied to hot and built; `stage.free_floor` stays free.
    saved = SAVES * (16 if pipeline.train.ema else 12) * parameters(pipeline)  # weight, moments, average
    needed = 3 * used_bytes + saved + SPARE_BYTES + pipeline.stage.free_floor
    for place in {home.parent for home in homes.values()}:
        if needed > (free := shutil.disk_usage(place).free):
            why = f"it takes {format_bytes(needed)} with stage.free_floor, {format_bytes(free)} are free"
            raise UnavailableError(f"{place} has no room for a rehearsal: {why}; free some, or lower that")
    name = homes["state"].name[1:]
    body: dict[str, Any] = yaml.safe_load(effective_yaml(pipeline))
    for key in ("notify", "evaluations", "promote"):
        body.pop(key, None)
    body |= {"name": name, **{key: str(home / key) for key, home in homes.items()}}
    body["metrics"]["ports"] = dict.fromkeys(body["metrics"]["ports"], 0)
    body["dataset"]["source"]["include"] = [re.sub(r"[*?\[\]]", "?", path) for path in files]
    body["dataset"]["limit"] = {"files": len(files)}
    body["plan"]["epochs"] = "unlimited"
    train = body["train"]
    train |= {"steps": ENDLESS, "tokens": None, "phases": [], "on_checkpoint": None, "on_promoted": None}
    train["evaluate"]["patience"] = None
    train["ema"] = train["ema"] and {**train["ema"], "from_step": 0}  # each save has it
    often = {"every": write_duration(round(every_s, 1)), "every_steps": None, "busy": "skip"}
    train["checkpoint"] |= {**often, "keep_last": 1, "keep_every": None, "milestones": []}
    file = homes["state"] / f"{name}.yaml"
    write_atomic(file, yaml.safe_dump(body, sort_keys=False, allow_unicode=True).encode())
    return Scratch(load_pipeline(file), homes, used_bytes / source_bytes, source_bytes)
