"""The sections of a report about the machine and the data."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.cli.pipeline.status import gpus_line
from stoker.cli.report.parts import MOST_ROWS, Missing, Part, Source, Table, shown_of
from stoker.config.units import format_bytes
from stoker.corpus.quarantine.directory import read_quarantine
from stoker.observe.drawing import MOST_COLOURS, Panel, Points
from stoker.observe.verdict import NAMES
from stoker.store.layout import DAEMONS, STAGE_SHARD, TRAIN_SUPERVISOR

ROLE, FREE = "_rss_bytes", "_free_bytes"
GPUS = {
    "gpu_memory_used_bytes": ("Memory in use on all GPUs", "bytes"),
    "gpu_utilization_ratio": ("Mean utilisation of the GPUs", "share"),
}


def memory(source: Source) -> Iterator[Part]:
    for daemon in DAEMONS:
        columns = source.samples[daemon]
        roles = {name.removesuffix(ROLE): one for name, one in columns.items() if name.endswith(ROLE)}
        most = sorted(roles, key=lambda role: -roles[role][1].max())[:MOST_COLOURS]
        title = NAMES[daemon].removeprefix("the ").capitalize()
        if most:
            yield Panel(title, {role: roles[role] for role in most}, over="time")
            peaks = [f"{role} {format_bytes(roles[role][1].max())}" for role in most]
            yield f"{title}, most of each role: {', '.join(peaks)}"
        else:
            yield Missing(f"{title}: no sample that can be read; it writes one a minute")


def gpus(source: Source) -> Iterator[Part]:
    columns = source.samples[TRAIN_SUPERVISOR]
    known = [name for name in GPUS if name in columns]
    for name in known:
        title, unit = GPUS[name]
        yield Panel(title, {"GPUs": columns[name]}, unit=unit, over="time")
    about = source.daemons[TRAIN_SUPERVISOR]
    now = gpus_line(about["body"].get("gpus") or {}) if about["running"] else ""
    if now or not known:
        yield f"now: {now}" if now else Missing("no GPU was sampled")


def disks(source: Source) -> Iterator[Part]:
    free: dict[str, Points] = {}
    for daemon in (STAGE_SHARD, *DAEMONS):  # which knows all disks; the others the state disk
        for name, sizes in source.samples[daemon].items():
            if name.endswith(FREE):
                free.setdefault(name.removesuffix(FREE), sizes)
    if free:
        yield Panel("Bytes free", free, over="time")
        yield (
            ", ".join(f"{disk} {format_bytes(sizes[-1])}" for disk, (_, sizes) in free.items()) + " free last"
        )
    else:
        yield Missing("no sample of a disk that can be read; the daemons write one a minute")


def quarantine(source: Source) -> Iterator[Part]:
    found = [
        one for one in read_quarantine(source.pipeline.layout.quarantine) if one.things or not one.released
    ]
    if not found:
        yield "nothing is in quarantine"
        return
    size = format_bytes(sum(one.bytes for one in found))
    yield f"{len(found):,} in quarantine, {size}, the newest first{shown_of(found)}"
    rows = [(one.path or one.name, one.kind, one.when, one.reason) for one in found[:MOST_ROWS]]
    yield Table(("what", "kind", "since", "reason"), rows)
