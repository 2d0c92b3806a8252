"""`stoker verify`: the proof of shard sets, parquet files, checkpoints and downloads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from stoker.cli.data.verify_downloads import downloads
from stoker.cli.options import PATH, one_line
from stoker.store.errors import UnknownFormat, UsageError

EXIT_FINDING, EXIT_UNREADABLE = 1, 74
SET_NAME = re.compile(r"[0-9a-f]{16}")  # a published set's directory, even one that was emptied
SET_FILE = re.compile(r"SHA256SUMS|manifest\.json|(train|val)-\d+\.(bin|idx|row)")


@dataclass(frozen=True)
class Finding:
    """One thing looked at: its verdict, with the reason unless proven, and what else is worth saying."""

    path: Path
    verdict: Literal["proven", "invalid", "unreadable"]
    reason: str = ""
    remarks: tuple[str, ...] = ()


@click.group(epilog="Example: stoker verify checkpoint /var/lib/stoker/fineweb/runs/main/checkpoints")
def verify() -> None:
    """Prove shard sets, parquet files, checkpoints or downloads, reading every byte.

    Exit codes: 1 something is not what it says it is; 74 something could not be read, which proves nothing;
    78 a newer Stoker wrote it.
    """


verify.add_command(downloads)


@verify.command(
    short_help="Prove shard sets.",
    epilog="Example: stoker verify shards /srv/fast/fineweb/shards/fineweb-350bt",
)
@click.argument("paths", nargs=-1, required=True, type=PATH)
def shards(paths: tuple[Path, ...]) -> int:
    """Prove the shard sets at PATHS.

    A directory above sets, such as <hot>/shards, stands for all of them.
    """
    return _report(_each(paths, _sets), _shard_set)


@verify.command(
    short_help="Check parquet files.",
    epilog="Example: stoker verify parquet /data/fineweb --text-column text",
)
@click.argument("paths", nargs=-1, required=True, type=PATH)
@click.option("--text-column", default="text", show_default=True, help="The column that must hold text.")
def parquet(paths: tuple[Path, ...], text_column: str) -> int:
    """Check parquet files at PATHS: footer, schema, and every page of the text.

    A directory stands for every *.parquet below it.
    """
    return _report(_each(paths, _parquet_files), lambda path: _parquet(path, text_column))


@verify.command(
    short_help="Prove checkpoints.",
    epilog="Example: stoker verify checkpoint /var/lib/stoker/fineweb/runs/main/checkpoints",
)
@click.argument("paths", nargs=-1, required=True, type=PATH)
def checkpoint(paths: tuple[Path, ...]) -> int:
    """Prove the checkpoints at PATHS whole.

    A run's directory, its checkpoints/, or its mirror <warm>/checkpoints/<run> stands for all in it. Nothing
    is loaded.
    """
    return _report(_each(paths, _checkpoints), _checkpoint)


def _each(paths: Iterable[Path], expand: Callable[[Path], Sequence[Path]]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist; name what to verify")
        below = expand(path)
        if not below:
            raise UsageError(f"{path} holds nothing of this kind; name what to verify (see --help)")
        found += below
    return found


def _report(paths: Iterable[Path], prove: Callable[[Path], Finding]) -> int:
    """Print a line for each path as soon as it is known, and give the exit code."""
    verdicts, unknown = set(), False
    for path in paths:
        try:
            finding = prove(path)
        except UnknownFormat as newer:
            finding = Finding(path, "unreadable", str(newer))
            unknown = True
        verdicts.add(finding.verdict)
        told = f"{path}: {finding.verdict}" + (f": {finding.reason}" if finding.reason else "")
        click.echo(one_line(told))
        for remark in finding.remarks:
            click.echo(one_line(f"{path}: note: {remark}"))
    if "invalid" in verdicts:
        return EXIT_FINDING
    if unknown:
        return UnknownFormat.exit_code
    return EXIT_UNREADABLE if "unreadable" in verdicts else 0


def _sets(path: Path) -> list[Path]:
    """The path itself where it is a set, whole or not, else every set below it."""
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory; a shard set is one")
    entries = sorted(path.iterdir())
    if SET_NAME.fullmatch(path.resolve().name) or any(SET_FILE.fullmatch(entry.name) for entry in entries):
        return [path]
    below = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return [found for entry in below for found in _sets(entry)]


def _shard_set(path: Path) -> Finding:
    from stoker.shards.format.proof import prove_set

    proof = prove_set(path)
    name = path.resolve().name
    # A published set is named after its key: a whole set in another one's place is a finding too.
    if proof.manifest is not None and len(name) == 16 and not proof.manifest.key.startswith(name):
        return Finding(
            path, "invalid", f"manifest.json: the key begins {proof.manifest.key[:16]}, not {name}"
        )
    remarks = [f"{name} is in no list of this set" for name in proof.unknown]
    return Finding(path, proof.verdict, proof.reason, (*remarks, *_cached(proof.cached)))


def _cached(cached: bool) -> tuple[str, ...]:
    return ("read through the page cache; this file system lets nothing past it",) if cached else ()


def _parquet_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.parquet")) if path.is_dir() else [path]


def _parquet(path: Path, text_column: str) -> Finding:
    from stoker.corpus.staging.preflight import preflight

    try:
        flaw = preflight(path, text_column, decode=True)
    except OSError as error:
        return Finding(path, "unreadable", str(error))
    if flaw is None:
        return Finding(path, "proven")
    where = "" if flaw.row_group is None else f" in row group {flaw.row_group}"
    where += "" if flaw.column is None else f", column {flaw.column}"
    return Finding(path, "invalid", f"{flaw.reason}{where}: {flaw.detail}")


def _checkpoints(path: Path) -> list[Path]:
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory; a checkpoint is one")
    for below in ("step-*", "checkpoints/step-*", "t*/step-*"):  # the last: a run's mirror on warm
        found = sorted(entry for entry in path.glob(below) if entry.is_dir())
        if found:
            return found
    names = ("SHA256SUMS", "checkpoint.json")
    is_one = path.resolve().name.startswith("step-") or any((path / name).exists() for name in names)
    return [path] if is_one else []


def _checkpoint(path: Path) -> Finding:
    from stoker.checkpoints.proof import prove_checkpoint

    proof = prove_checkpoint(path)
    remarks = [f"{name} is in no list of this checkpoint, and was not opened" for name in proof.extra]
    return Finding(path, proof.verdict, proof.reason, (*remarks, *_cached(proof.cached)))
