"""`stoker init`: writes a pipeline file for this machine, by questions or by options."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import NEW_FILE, TEXT, F, one_line
from stoker.cli.pipeline.init_sizes import TOKENS, gpu_bytes, measured, model_for, sized
from stoker.config.load import load_pipeline
from stoker.config.units import format_bytes, parse_count, write_count
from stoker.store.errors import ConfigError, UsageError
from stoker.store.files import write_atomic


def _question(name: str, text: str, default: Any = None, **more: Any) -> Callable[[F], F]:
    """Returns an option that is asked for on a terminal; elsewhere it has its default."""
    otherwise = {"required": True} if default is None else {"default": default, "show_default": bool(default)}
    asked = text if sys.stdin.isatty() else None
    return click.option(name, prompt=asked, help=f"{text}.", **{"type": TEXT, **otherwise, **more})


def _beside(directory: str) -> str:
    return str(click.get_current_context().params["out"].with_suffix("") / directory)


def _usual_tokens() -> str:
    return TOKENS[click.get_current_context().params["model"]]


def _count(_: click.Context, __: click.Parameter, text: str | int) -> int:
    try:
        return parse_count(str(text))
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from problem


@click.command(epilog="Example: stoker init mine.yaml --source /data/parquet")
@click.argument("out", metavar="[OUT.yaml]", default="mine.yaml", type=NEW_FILE)
@_question("--source", "Folder of parquet, hf://OWNER/NAME of a hub, or a file of URLs")
@_question("--text-column", "Column that holds the text", "text")
@_question("--tokenizer", "A tokenizer.json; empty to train one", "")
@_question("--state", "Directory of records and checkpoints, on a local disk", lambda: _beside("state"))
@_question("--hot", "Directory of the data in work, on the fastest disk", lambda: _beside("hot"))
@_question("--warm", "Directory on a big slow disk; empty for none", "")
@_question("--model", "Model", lambda: model_for(gpu_bytes()), type=click.Choice([*TOKENS]))
@_question("--tokens", "Tokens to train on", _usual_tokens, callback=_count)
def init(out: Path, source: str, text_column: str, tokens: int, **given: str) -> None:
    """Write a pipeline file, sized for this machine, with a comment at its keys.

    On a terminal what no option says is asked; elsewhere it has its default, and only --source must be there.
    The pipeline has the name of the file, mine.yaml where none is given. A file that exists is never
    overwritten (exit code 64). For a trainer of your own, `stoker watch --save` writes one.
    """
    model = given.pop("model")
    values = {key: value and str(Path(value).expanduser().absolute()) for key, value in given.items()}
    place = Path(source).expanduser().absolute()
    kind = "hub" if source.startswith("hf://") else "urls" if place.is_file() else "folder"
    values |= {"kind": kind, "place": source.removeprefix("hf://") if kind == "hub" else str(place)}
    values |= {"name": out.stem, "text_column": text_column, "tokens": write_count(tokens), "model": model}
    machine = measured(Path(values["hot"]))
    sizes = sized(machine, tokens, has_warm=bool(values["warm"]))
    _write(out.absolute(), {"machine": machine, "is_small": model in ("tiny", "demo"), **values, **sizes})
    shown = one_line(shlex.quote(str(out)))
    click.echo(f"wrote {shown}; next:")
    click.echo("\n".join(f"  stoker {command} {shown}" for command in ("config check", "doctor", "run")))


def _write(file: Path, values: dict[str, Any]) -> None:
    """Writes the file once it loads; raises UsageError for an answer that no pipeline can have."""
    from jinja2 import Environment, FileSystemLoader

    made = Environment(loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True)  # noqa: S701 - YAML
    made.filters["size"] = format_bytes
    data = made.get_template("init.yaml").render(values).encode() + b"\n"
    with tempfile.TemporaryDirectory(prefix="stoker-init-") as folder:
        trial = Path(folder) / file.name
        write_atomic(trial, data)
        try:
            load_pipeline(trial)
        except ConfigError as problem:
            raise UsageError(f"nothing is written: {str(problem).replace(f'{folder}/', '')}") from problem
    write_atomic(file, data)
