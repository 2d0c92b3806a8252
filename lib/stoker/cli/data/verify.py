"""`stoker verify`: proves shard sets, parquet files, checkpoints and downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from stoker.checkpoints.proof import prove_checkpoint
from stoker.cli.data.verify_downloads import downloads
from stoker.cli.options import PATH, one_line
from stoker.cli.which_run import checkpoints_at
from stoker.corpus.staging.preflight import preflight
from stoker.shards.exchange.export_sets import find_sets
from stoker.shards.format.proof import prove_set
from stoker.store.errors import UnknownFormat, UsageError

EXITS = {"invalid": 1, "unknown": UnknownFormat.exit_code, "unreadable": 74, "proven": 0}  # the worst first
CACHED = "read through the page cache; this file system lets nothing past it"

# A verdict, the reason unless proven, and further remarks.
Finding = tuple[str, str, Sequence[str]]
PATHS = click.argument("paths", nargs=-1, required=True, type=PATH)


@click.group(epilog="Example: stoker verify checkpoint /var/lib/stoker/fineweb/runs/main/checkpoints")
def verify() -> None:
    """Prove shard sets, parquet files, checkpoints or downloads, reading every byte.

    Exit codes: 1 the content of a file is wrong; 74 something could not be read, which proves nothing; 78 a
    newer Stoker wrote it.
    """


verify.add_command(downloads)


@verify.command(epilog="Example: stoker verify shards /srv/fast/fineweb/shards/fineweb-350bt")
@PATHS
def shards(paths: tuple[Path, ...]) -> int:
    """Prove the shard sets at PATHS.

    For a directory above sets, such as <hot>/shards, prove every set below it.
    """
    return _report(paths, find_sets, _shard_set)


@verify.command(epilog="Example: stoker verify parquet /data/fineweb --text-column text")
@PATHS
@click.option("--text-column", default="text", help="The column that must hold text.")
def parquet(paths: tuple[Path, ...], text_column: str) -> int:
    """Check parquet files at PATHS: footer, schema, and every page of the text.

    For a directory, check every *.parquet below it.
    """

    def below(path: Path) -> list[Path]:
        return sorted(path.rglob("*.parquet")) if path.is_dir() else [path]

    return _report(paths, below, lambda path: _parquet(path, text_column))


@verify.command(epilog="Example: stoker verify checkpoint /var/lib/stoker/fineweb/runs/main/checkpoints")
@PATHS
def checkpoint(paths: tuple[Path, ...]) -> int:
    """Prove the checkpoints at PATHS whole.

    For a run's directory, its checkpoints/, or its mirror <warm>/checkpoints/<run>, prove every checkpoint in
    it. The command loads no checkpoint.
    """
    return _report(paths, checkpoints_at, _checkpoint)


def _report(
    paths: Iterable[Path], below: Callable[[Path], Sequence[Path]], prove: Callable[[Path], Finding]
) -> int:
    """Prints a verdict for each file or set at the paths as soon as it is known; returns the exit code."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist; name what to verify")
        if not (here := below(path)):
            raise UsageError(f"{path} holds nothing of this kind; name what to verify (see --help)")
        found += here
    verdicts = {"proven"}
    for path in found:
        try:
            verdict, reason, remarks = prove(path)
            verdicts.add(verdict)
        except UnknownFormat as newer:
            verdict, reason, remarks = "unreadable", str(newer), ()
            verdicts.add("unknown")
        click.echo(one_line(f"{path}: {verdict}" + (f": {reason}" if reason else "")))
        for remark in remarks:
            click.echo(one_line(f"{path}: note: {remark}"))
    return next(code for verdict, code in EXITS.items() if verdict in verdicts)


def _shard_set(path: Path) -> Finding:
    proof = prove_set(path)
    return _proven(proof, [f"{name} is in no list of this set" for name in proof.unknown])


def _proven(proof: Any, remarks: list[str]) -> Finding:
    return proof.verdict, proof.reason, [*remarks, *([CACHED] if proof.cached else [])]


def _parquet(path: Path, text_column: str) -> Finding:
    try:
        flaw = preflight(path, text_column, decode=True)
    except OSError as error:
        return "unreadable", str(error), ()
    if flaw is None:
        return "proven", "", ()
    return "invalid", str(flaw), ()


def _checkpoint(path: Path) -> Finding:
    proof = prove_checkpoint(path)
    remarks = [f"{name} is in no list of this checkpoint, and was not opened" for name in proof.extra]
    return _proven(proof, remarks)
