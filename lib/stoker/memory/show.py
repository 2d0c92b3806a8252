"""`stoker memory show`: shows a recording, or what a pipeline's daemons took."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.cli.options import PATH, one_line
from stoker.store.errors import UsageError

KINDS = (".png", ".svg")


@click.command(epilog="Example: stoker memory show leak.csv --plot leak.png")
@click.argument("file", metavar="CSV|FILE", type=PATH)
@click.option("--plot", metavar="OUT", type=PATH, help="Also draw a picture: OUT.png or OUT.svg.")
def show(file: Path, plot: Path | None) -> None:
    """Show a recording, or a pipeline's samples.

    Shown are peaks, the growth a minute over the later half, and marks; of a pipeline each daemon with all
    its processes, and the launches, checkpoints and evaluations of its run. Exit codes: 65 the file is no
    recording or has no sample; 74 the picture cannot be written.
    """
    from stoker.memory.drawing import as_text, write_plot
    from stoker.memory.picture import panel_of_recording, panels_of_samples

    if plot is not None and plot.suffix.lower() not in KINDS:
        raise UsageError(f"{plot} ends with neither .png nor .svg, the two kinds of picture there are")
    if file.suffix.lower() in (".yaml", ".yml"):
        from stoker.config.load import load_pipeline

        pipeline = load_pipeline(file)
        panels = panels_of_samples(pipeline.layout, pipeline.train.run)
    elif file.is_file():
        panels = [panel_of_recording(file)]
    else:
        raise UsageError(f"{file} is no file; name a recording or a pipeline's YAML file")
    for panel in panels:
        click.echo("\n".join(map(one_line, as_text(panel))))
    if plot is not None:
        write_plot(panels, plot)
        click.echo(f"wrote {plot}")
