"""`stoker memory show`: draws a recording, or what a pipeline's daemons took."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.cli.options import PATH, one_line
from stoker.kit.terminal import columns_of
from stoker.store.errors import UsageError

KINDS = (".png", ".svg")


@click.command(epilog="Example: stoker memory show leak.csv --plot leak.png")
@click.argument("file", metavar="CSV|FILE", type=PATH)
@click.option("--plot", metavar="OUT", type=PATH, help="Also write a picture: OUT.png or OUT.svg.")
def show(file: Path, plot: Path | None) -> None:
    """Draw a recording, or a pipeline's samples.

    Shown are the peak, the growth a minute over the later half, and marks; of a pipeline each daemon with all
    its processes, and the launches, checkpoints and evaluations of its run. Exit codes: 65 the file is no
    recording or has no sample; 74 the picture cannot be written.
    """
    from stoker.memory.drawing import as_text, write_plot
    from stoker.memory.memory_picture import Picture, picture_of_recording, picture_of_samples

    if plot is not None and plot.suffix.lower() not in KINDS:
        raise UsageError(f"{plot} ends with neither .png nor .svg, the two kinds of picture there are")
    picture: Picture
    if file.suffix.lower() in (".yaml", ".yml"):
        from stoker.config.load import load_pipeline

        pipeline = load_pipeline(file)
        picture = picture_of_samples(pipeline.layout, pipeline.train.run)
    else:
        if not file.is_file():
            raise UsageError(f"{file} is no file; name a recording or a pipeline's YAML file")
        picture = picture_of_recording(file)
    for line in as_text(picture, columns_of(1)):
        click.echo(one_line(line))
    if plot is not None:
        write_plot(picture, plot)
        click.echo(f"wrote {plot}")
