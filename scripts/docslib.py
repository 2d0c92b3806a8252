"""The reference pages below docs/reference: commands, configuration keys, events, metrics, exit codes."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import yaml
from schemalib import json_schema

from stoker.cli.main import cli
from stoker.config.load import load_pipeline
from stoker.config.show import effective_yaml
from stoker.config.sources import SOURCES
from stoker.kit.event_types import COMMON, EventType, table
from stoker.kit.metrics import OWN, PREFIX, Figure, Metrics
from stoker.store import errors
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR
from stokerd import download_watchdog, stage_shard, train_supervisor
from stokerd.download.loop import FIGURES as DOWNLOAD_FIGURES
from stokerd.sharding.status import FIGURES as SHARD_FIGURES
from stokerd.supervision.run import Timings
from stokerd.supervision.status import FIGURES as TRAIN_FIGURES

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference"
FIGURES = {
    "Every daemon": OWN,
    "Download watchdog": DOWNLOAD_FIGURES,
    "Stage-shard loop": SHARD_FIGURES,
    "Train supervisor": TRAIN_FIGURES,
}
EVENTS = {
    "Several daemons": COMMON,
    "Download watchdog": DOWNLOAD_WATCHDOG,
    "Stage-shard loop": STAGE_SHARD,
    "Train supervisor": TRAIN_SUPERVISOR,
}
# What a pipeline file must name; all else has a default.
LEAST = """name: mine
hot: /hot
dataset: {name: NAME, source: {kind: folder, path: /path}}
train: {steps: 1}
"""
REQUIRED = ("name", "hot", "dataset.name", "dataset.source.kind", "train.steps")
# What the types of stoker.config.reading accept.
VALUES = {
    **{"Text": "text", "Words": "words of a command", "Flag": "true or false", "FilePath": "path"},
    **{"Name": "name", "DatasetName": "name", "Number": "number", "PositiveNumber": "number above 0"},
    **{"Natural": "count", "Positive": "count above 0", "Size": "size", "PositiveSize": "size"},
    **{"Seconds": "duration", "PositiveSeconds": "duration", "Share": "0 to 1", "ShareBelowOne": "0 to 1"},
    **{"AutoOrCount": "`auto` or a count", "Epochs": "`unlimited` or a count", "Devices": "`auto`"},
    **{"StepOrDecay": "step above 0, or `decay`", "Factor": "number from 1 on"},
    **{"Precision": "`auto`, `float32`, `bfloat16`", "Follow": "`false`, `new_commits`"},
    **{"Secret": "text, never shown", "SecretWords": "words of a command, never shown"},
    **{"Clock": "`HH:MM`", "Hours": "`HH:MM-HH:MM`", "Zone": "name of a time zone"},
    **{"MetricName": "`TASK/METRIC`", "Margin": "number of 0 or more"},
    "KindName": ", ".join(f"`{kind}`" for kind in SOURCES),
}
# Exit codes that no class of errors stands for.
CODES = {
    0: ["Success."],
    1: [
        "A finding of `audit`, `verify`, `replay` or `status --check`, a warning of `doctor`; with `--once`, "
        "abandoned files."
    ],
    2: ["`doctor` found something that is broken."],
    70: ["A halted run, or a bug."],
    130: ["Ctrl-C ended a command."],
    143: ["SIGTERM ended a command."],
}


def page(title: str, *parts: str) -> str:
    """Returns a page."""
    return "\n\n".join(("<!-- Made by scripts/docs: do not edit. -->", f"# {title}", *parts)) + "\n"


def rows(columns: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Returns a table."""
    names = tuple(columns)
    cells = [[" ".join(cell.split()).replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, ("---",) * len(names), *cells))


def leaves(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """Yields each command that is no group of others, with its context."""
    if not isinstance(command, click.Group):
        yield command, context
        return
    for name in command.list_commands(context):
        if found := command.get_command(context, name):
            inner = click.Context(found, parent=context, info_name=name, **found.context_settings)
            yield from leaves(found, inner)


def usage(command: click.Command, context: click.Context) -> str:
    """Returns the command line with every argument and option."""
    options, arguments = [], []
    for parameter in command.params:
        word = re.sub("(INTEGER|FLOAT)( RANGE)?", "N", parameter.make_metavar(context))
        word = re.sub(r"^\[(.+?)\](\.\.\.)?$", r"\1\2", word)  # brackets are of what is optional
        word = word if parameter.required or isinstance(parameter, click.Option) else f"[{word}]"
        if not isinstance(parameter, click.Option):
            arguments.append(word)
            continue
        name = max(parameter.opts, key=len)
        word = name if parameter.is_flag else f"{name} {word}"
        options.append(word if parameter.required else f"[{word}]")
    is_wrapper = not context.allow_interspersed_args  # what follows is another command's
    words = (options, arguments) if is_wrapper else (arguments, options)
    return " ".join((context.command_path, *words[0], *words[1]))


def paragraphs(text: str | None) -> str:
    """Returns a help text with each paragraph on one line."""
    return "\n\n".join(
        " ".join(part.split()) for part in re.split(r"\n\s*\n", (text or "").replace("\b", "").strip())
    )


def command_help(command: click.Command, context: click.Context) -> str:
    """Returns a command's section."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    lines = [(f"`{record[0]}`", record[1]) for each in options if (record := each.get_help_record(context))]
    table = rows(("option", "meaning"), lines) if lines else ""
    example = f"```\n{(command.epilog or '').removeprefix('Example: ')}\n```"
    return "\n\n".join(
        part for part in (f"## {context.command_path}", paragraphs(command.help), table, example) if part
    )


def daemon_help(main: Callable[[], int], program: str) -> str:
    """Returns a daemon's section: what its `--help` prints, which starts nothing."""
    given, printed = sys.argv, io.StringIO()
    sys.argv = [program, "--help"]
    with contextlib.redirect_stdout(printed):
        main()
    sys.argv = given
    return f"## {program}\n\n```\n{printed.getvalue().strip()}\n```"


def commands() -> str:
    """Returns the page of commands."""
    os.environ["COLUMNS"] = "100"  # of argparse
    found = list(leaves(cli, click.Context(cli, info_name="stoker")))
    short = ((f"`{usage(*each)}`", paragraphs(each[0].help).split("\n")[0]) for each in found)
    return page(
        "Commands",
        "FILE is a pipeline's YAML file. `stoker help COMMAND` prints the same text. The "
        "[exit codes](exit-codes.md) are the same for all.",
        rows(("command", "does"), short),
        *(command_help(*each) for each in found),
        "# The daemons by themselves",
        daemon_help(download_watchdog.main, "stoker-download-watchdog"),
        daemon_help(stage_shard.main, "stoker-stage-shard"),
        daemon_help(train_supervisor.main, "stoker-train-supervisor"),
    )


def values(annotation: ast.expr) -> str:
    """Returns in words which values an annotation of the schema accepts; empty for a section."""
    match annotation:
        case ast.Name(id=name) if name in VALUES:
            return VALUES[name]
        case ast.Constant(value=None):
            return "`null`"
        case ast.BinOp(left=left, right=right):
            return " or ".join(filter(None, (values(left), values(right))))
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            return ", ".join(f"`{each.value}`" for each in getattr(inner, "elts", [inner]))
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[first, *_])):
            return f"list of {values(first)}"
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, value])):
            return f"mapping of {values(key)} to {values(value)}"
    raise ValueError(f"say in scripts/docslib.py what {ast.unparse(annotation)} accepts")


def comments(lines: list[str], node: ast.AnnAssign) -> str:
    """Returns the comment at a field of the schema, or the one above it."""
    if found := re.search(r"\s#\s(.*)", lines[(node.end_lineno or 0) - 1]):
        return found[1]
    above: list[str] = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.lstrip().startswith("# "):
            break
        above.insert(0, line.strip()[2:])
    return " ".join(above)


def example_comments() -> dict[str, str]:
    """Returns the comments of etc/fineweb.yaml by key, also of keys that are commented out there."""
    found, path = dict[str, str](), list[tuple[int, str]]()
    for line in (ROOT / "etc" / "fineweb.yaml").read_text().splitlines():
        if match := re.match(r"( {0,12})(?:# ( *))?(\w+):(?!\S)(?:.*?\s# (.*))?", line):
            indent = len(match[1]) + len(match[2] or "")
            path = [*(each for each in path if each[0] < indent), (indent, match[3])]
            found[".".join(name for _, name in path)] = match[4] or ""
        elif path and (more := re.match(r" {20,}# (.*)", line)):
            found[".".join(name for _, name in path)] += f" {more[1]}"
    return found


def defaults() -> dict[str, str]:
    """Returns the default of each key, in the notation of the file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "mine.yaml")
        file.write_text(LEAST)
        shown = yaml.load(effective_yaml(load_pipeline(file, {})), yaml.BaseLoader)  # all values as text
    found, left = dict[str, str](), list(shown.items())
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{path}.{name}", inner) for name, inner in value.items()]
        found[path] = f"[{', '.join(value)}]" if isinstance(value, list) else str(value or "{}")
    found["state"] = found["state"].replace("mine", "NAME")
    return found | {"dataset.source.path": "null"}


def configuration() -> str:
    """Returns the page of configuration keys."""
    classes = dict[str, tuple[ast.ClassDef, list[str]]]()
    for name in ("schema_evaluation.py", "schema_phases.py", "schema_train.py", "schema.py"):
        text = (ROOT / "lib" / "stoker" / "config" / name).read_text()
        classes |= {
            node.name: (node, text.splitlines())
            for node in ast.parse(text).body
            if isinstance(node, ast.ClassDef)
        }
    comment_of, default = example_comments(), defaults()

    def keys(section: str, prefix: str) -> Iterator[tuple[str, str, str, str]]:
        """Yields each key of a section: path, accepted values, default, meaning."""
        of, lines = classes[section]
        for node in of.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            name, kind = node.target.id, ast.unparse(node.annotation)
            if name.startswith("_") or "ClassVar" in kind:
                continue
            if alias := re.search(r"alias='(\w+)'", ast.unparse(node)):
                name = alias[1]
            path, inner = prefix + name, kind.removesuffix(" | None")
            if (listed := re.fullmatch(r"tuple\[(\w+), \.\.\.\]", inner)) and listed[1] in classes:
                about = (ast.get_docstring(classes[listed[1]][0]) or "").split("\n")[0]
                yield (
                    f"`{path}`",
                    "list of mappings of the keys below",
                    "`[]`",
                    f"{about} {comment_of.get(path)}",
                )
                yield from keys(listed[1], f"{path}[].")
                continue
            meaning = comment_of.get(path) or comments(lines, node)
            if inner not in classes:
                value = node.value.value if isinstance(node.value, ast.Constant) else None
                literal = (
                    "[]" if isinstance(node.value, ast.Tuple) else "null" if value is None else str(value)
                )
                shown = f"`{default.get(path, literal)}`" if path not in REQUIRED else "required"
                yield f"`{path}`", values(node.annotation), shown, meaning.replace("None", "null")
                continue
            about = (ast.get_docstring(classes[inner][0]) or "").split("\n")[0]
            told = ". ".join(filter(None, (meaning, about))).replace("None", "null")
            yield f"`{path}`", "keys below", "", told
            yield from keys(inner, f"{path}.")

    lines = list(keys("Pipeline", ""))
    if bare := [line[0] for line in lines if not line[3] and line[0].count(".") < 2]:
        sys.exit(f"no meaning of {', '.join(bare)}: add a comment in etc/fineweb.yaml")
    return page(
        "Configuration keys",
        "The keys of a pipeline file, as [etc/fineweb.yaml](../../etc/fineweb.yaml) has them. Sizes: "
        "`80GiB`, `64MiB`, `200MB`; counts: `20M`, `1B`, `1e6`; durations: `30s`, `90m`, `2d`, `1h30m`. "
        "Relative paths count from the file. The environment overrides a key: `STOKER_TRAIN__STEPS=1000`.",
        rows(("key", "value", "default", "meaning"), lines),
    )


def event_cells(of: EventType) -> Iterator[str]:
    """Yields the cells of an event's row."""
    former = f" (before: {', '.join(f'`{word}`' for word in of.was)})" if of.was else ""
    yield f"`{of.word}`{former}"
    yield of.level if of.daemons else f"{of.level}, in the log alone"
    yield f"{of.headline[0].upper()}{of.headline[1:]}. {of.meaning}".replace("<", "&lt;")
    link = f"[{of.alert}](../runbook.md#{of.alert.lower()})" if of.alert else ""
    yield " ".join((of.check, of.do, link)).replace("<", "&lt;")


def events() -> str:
    """Returns the page of events."""
    parts = []
    for title, name in EVENTS.items():
        types = {row.word: row for row in table(name).values()}
        columns = ("event", "level", "what happened", "check and do")
        parts += [f"## {title}", rows(columns, (event_cells(types[word]) for word in sorted(types)))]
    return page(
        "Events",
        "FILE is the pipeline's file, NAME its name, `{path}` a field of the event. Where the last column is "
        "empty, no action is needed. `stoker_events_total{event}` counts each event.",
        *parts,
    )


def metrics() -> str:
    """Returns the page of metrics."""
    parts = []
    for title, figures in FIGURES.items():
        lines = [figure_cells(figure) for figure in figures]
        if figures is TRAIN_FIGURES:
            timings = Timings(Metrics(TRAIN_SUPERVISOR))
            lines += [
                (f"`{each.name}`", "histogram", "", each.documentation)
                for timing in vars(timings).values()
                for each in timing.collect()
            ]
        parts += [f"## {title}", rows(("metric", "type", "labels", "meaning"), lines)]
    return page(
        "Metrics",
        "The targets add the labels `pipeline` and `daemon`. A gauge without a value is NaN, a counter 0.",
        *parts,
    )


def figure_cells(of: Figure) -> tuple[str, ...]:
    """Returns the cells of a metric's row."""
    labels = (
        f"`{name}`{': ' if known else ''}{', '.join(map(str, known))}" for name, known in of.labels.items()
    )
    return (
        f"`{PREFIX}{of.name}`",
        "counter" if of.name.endswith("_total") else "gauge",
        "; ".join(labels),
        of.doc,
    )


def exit_codes() -> str:
    """Returns the page of exit codes."""
    meanings = {code: list(texts) for code, texts in CODES.items()}
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, errors.StokerError) and each.exit_code not in CODES:
            meanings.setdefault(each.exit_code, []).append((each.__doc__ or "").split("\n")[0])
    return page(
        "Exit codes",
        "The numbers follow sysexits.h. `stoker watch` ends with [the code of its command]"
        "(../trainers.md#in-one-line). systemd does not restart a daemon that exits 78.",
        rows(("code", "meaning"), ((str(code), " ".join(meanings[code])) for code in sorted(meanings))),
    )


def pages() -> dict[Path, str]:
    """Returns the content of each page."""
    makers = (commands, configuration, events, metrics, exit_codes)
    made = {PAGES / f"{make.__name__.replace('_', '-')}.md": make() for make in makers}
    return {**made, PAGES.parent / "pipeline.schema.json": json_schema(example_comments())}


def main() -> int:
    made = pages()
    differing = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    if "--check" not in sys.argv:
        PAGES.mkdir(exist_ok=True)
        for path in differing:
            path.write_text(made[path])
        return 0
    for path in differing:
        print(f"{path.relative_to(ROOT)} differs from the code: run scripts/docs", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
