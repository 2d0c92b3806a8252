"""`stoker bundle`: writes a checkpoint's model, proven and with its card, as one directory or tarball."""

from __future__ import annotations

import importlib.util
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from stoker.cli.model_weights import Weights, mean_options, proven_weights
from stoker.cli.options import PATH, TEXT, one_line, promoted_option
from stoker.cli.output import Sink, new_directory, write_json
from stoker.cli.worker_jobs import Workers
from stoker.kit.workers.pool import Activity
from stoker.release.card import About, card_of, facts_of, read_about
from stoker.store.checksums import prove_checksums, write_checksums
from stoker.store.direct import hash_file
from stoker.store.errors import DataError, UsageError
from stoker.store.files import make_dir, point_link, remove_tree, write_atomic
from stoker.store.record import parse_json

RELEASE, CARD = "release.json", "README.md"
FILES, TAR = "files", "bundle.tar"  # in the directory in which a tarball is made
PROOF = Activity("model_proof", "stoker.release.model_proof_worker", silent_s=6 * 3600.0)  # of a large model


@click.command(epilog="Example: stoker bundle /etc/stoker/fineweb.yaml fineweb-1 --card about.md")
@click.argument("sources", metavar="CHECKPOINT...", nargs=-1, required=True, type=PATH)
@click.argument("out", type=PATH)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", help="Of weights.")
@click.option("--tar", is_flag=True, help="Make OUT one file, a tarball.")
@click.option(
    "--card", "file", type=PATH, metavar="FILE", help="What the card says of use, limits and licence."
)
@click.option("--license", "license_id", type=TEXT, metavar="ID", help="The licence, where FILE has none.")
@promoted_option
@mean_options
@click.option("--current", "link", type=PATH, metavar="LINK", help="A symbolic link to turn to OUT at last.")
def bundle(
    sources: tuple[Path, ...], out: Path, dtype: str, tar: bool, link: Path | None, **more: Any
) -> None:
    """Write the model of CHECKPOINT to the new directory OUT, with a card and the hash of every file.

    CHECKPOINT is a step-... directory; a pipeline FILE, a run's directory or its checkpoints/ means the
    newest checkpoint of it. It is proven whole first. OUT has what stoker checkpoint export writes, README.md
    (the model card), release.json and SHA256SUMS, and nothing of this machine: the same checkpoint and words
    give the same bytes. Before OUT gets its name, transformers loads it, and its logits and token ids are
    held against Stoker's own; without transformers the bundle says that it is not proven. Of several
    checkpoints of one run OUT is the mean, which release.json and config.json tell.

    The FILE of --card is markdown; its front matter (YAML) goes to the card's. Exit codes: 64 OUT is there,
    or LINK is no symbolic link; 65 the checkpoint, the proof or FILE is wrong, or there is no mean; 74 no
    room.
    """
    if link is not None:
        _check_link(link, out, tar=tar)
    about = read_about(more.pop("file"), more.pop("license_id"))
    with proven_weights(sources, **more) as weights:
        facts = {**facts_of(weights), "dtype": dtype, "license": about.license}
        facts["proven"] = importlib.util.find_spec("transformers") is not None  # else there is no bundle
        if link is None or not _is_made(out, facts, about):
            _make(weights, out, facts, about, tar=tar)
    if not facts["proven"]:
        why = "transformers is not installed; `pip install 'stoker[hf]'` brings it"
        click.echo(f"stoker: the bundle is not proven, and stoker publish refuses it: {why}", err=True)
    if link is not None:
        point_link(link, out)
    click.echo(one_line(f"{out}: {weights} of run {facts['run']}, in {dtype}"))


def _check_link(link: Path, out: Path, *, tar: bool) -> None:
    if tar:
        raise UsageError("--current leads to a directory, which --tar does not make; leave out one of them")
    if (link.exists() and not link.is_symlink()) or not link.parent.is_dir():
        raise UsageError(f"{link} is no symbolic link, or has no directory; name another place for it")
    if out.absolute() in (link.absolute(), *link.absolute().parents):
        raise UsageError(f"{link} is {out} or lies in it; name another place for it")


def _is_made(out: Path, facts: dict[str, Any], about: About) -> bool:
    """Whether a killed command has made this bundle already, and only its link is left to turn."""
    try:
        made = parse_json((out / RELEASE).read_bytes())
        card = card_of(about, {**facts, "architecture": made.get("architecture")})
        is_same = facts.items() <= made.items() and card == (out / CARD).read_bytes()
        return is_same and not prove_checksums(out)[1]
    except (OSError, ValueError, AttributeError, DataError):
        return False


def _make(weights: Weights, out: Path, facts: dict[str, Any], about: About, *, tar: bool) -> None:
    """Makes the bundle under a temporary name; each file is written before what speaks of it."""
    from stoker.cli.transformers_model import bytes_of, write_model

    needed = bytes_of(weights, facts["dtype"]) * (1 + tar)
    with new_directory(out, needed, part=TAR if tar else "") as building:
        files = building / FILES if tar else building
        make_dir(files)
        facts["architecture"], sums = write_model(weights, files, facts["dtype"])
        proven_with = _prove(weights, files, facts["dtype"]) if facts["proven"] else ()
        names = ("stoker", "safetensors", "tokenizers", *proven_with)
        facts["versions"] = {name: version(name) for name in names}
        write_json(files / RELEASE, facts)
        write_atomic(files / CARD, card_of(about, facts), durable=False)
        small = [file for file in files.iterdir() if file.name not in sums]
        write_checksums(files, sums | {file.name: hash_file(file).sha256 for file in small})
        if tar:
            _write_tar(building / TAR, files, f"step-{facts['step']:09d}")
            remove_tree(files)


def _prove(weights: Weights, directory: Path, dtype: str) -> tuple[str, ...]:
    """Proves a directory of files; returns the packages that loaded it."""
    task = {"weights": weights.task, "directory": str(directory), "dtype": dtype}
    with Workers() as workers:
        result = workers.run(PROOF, task, "the bundle could not be proven")
    if difference := result["difference"]:
        raise DataError(f"no bundle was made: in transformers the model is another one: {difference}")
    return "torch", "transformers"


def _write_tar(target: Path, files: Path, name: str) -> None:
    """Writes a tarball of one folder; it holds no time, owner or mode of this machine."""
    with Sink(target) as sink, tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file in sorted(files.iterdir()):
            member = tarfile.TarInfo(f"{name}/{file.name}")
            member.size, member.mode = file.stat().st_size, 0o644
            with file.open("rb") as stream:
                archive.addfile(member, stream)
