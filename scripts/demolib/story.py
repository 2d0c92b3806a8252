"""The demo's story: real prose -> a hub -> shards -> a trained model, with one kill -9 on the way."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demolib import corpus, hub, prose, watch

REPO = Path(__file__).resolve().parents[2]
STOKER = REPO / ".venv" / "bin" / "stoker"
MARKER = ".stoker-demo"
WANTED_BYTES = 12_000_000
LEAST_BYTES = 8_000_000
FILES = 7
DAMAGED = 3
CUT = 1  # the file whose transfer is broken off on purpose
SEED = 1
EX_USAGE = 64
WELL_BELOW_NATS = 0.3
PROMPT = "The function returns"


def say(text: str = "") -> None:
    print(text, flush=True)


def heading(text: str) -> None:
    say(f"\n== {text}")


def heading_in_run(text: str) -> None:
    """A heading while `stoker run` writes over the last three rows of the terminal."""
    heading(text)
    if sys.stdout.isatty():
        say("\n")


class DemoError(Exception):
    """The demo cannot go on, or did not show what it promises."""


def fresh_directory(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise DemoError(f"{folder} is a file; choose a directory with --dir")
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise DemoError(f"{folder} is not empty and not an earlier demo; choose another with --dir")
        if holder := watch.running_pipeline(folder / "state"):
            raise DemoError(f"a demo is running in {folder} (pid {holder}); stop it first or use --dir")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()


class Progress:
    """Says now and then how much has been found."""

    EVERY_BYTES = 3_000_000

    def __init__(self) -> None:
        self.next = self.EVERY_BYTES

    def __call__(self, size: int) -> None:
        if size >= self.next:
            say(f"   {size / 1e6:.0f} MB found")
            self.next += self.EVERY_BYTES


def make_corpus(folder: Path) -> list[Path]:
    heading("Real prose from this machine, as parquet in FineWeb's schema")
    documents = prose.gather(WANTED_BYTES, SEED, progress=Progress())
    size = sum(len(text.encode()) for _, text in documents)
    if size < LEAST_BYTES:
        raise DemoError(
            f"found only {size / 1e6:.1f} MB of prose on this machine, {LEAST_BYTES / 1e6:g} needed"
        )
    paths = corpus.write(folder, documents, FILES)
    group = corpus.damage(paths[DAMAGED])
    say(f"{len(documents):,} documents, {size / 1e6:.1f} MB of text in {len(paths)} files under {folder}")
    say(f"damaged on purpose: {paths[DAMAGED].name}, 64 bytes inside a page of row group {group}")
    return paths


def write_configuration(folder: Path, steps: int | None, source: str) -> Path:
    """The embedded demo.yaml with the hub in its folder's place; it stays as <dir>/demo.yaml."""
    lines = (REPO / "etc" / "demo.yaml").read_text().splitlines()
    lines = [source if line.startswith("  source:") else line for line in lines]
    if steps is not None:
        lines = [f"  steps: {steps}" if line.startswith("  steps:") else line for line in lines]
    path = folder / "demo.yaml"
    path.write_text("\n".join(lines) + "\n")
    stoker("config", "check", str(path))
    return path


def own_steps() -> int:
    """The steps of the embedded demo.yaml."""
    lines = (REPO / "etc" / "demo.yaml").read_text().splitlines()
    return int(next(line.split(":")[1] for line in lines if line.startswith("  steps:")))


def stoker(*arguments: str) -> str:
    done = subprocess.run([STOKER, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout, end="")
        raise DemoError(f"stoker {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


def look_first(configuration: Path) -> None:
    heading("What the hub holds, and how long it takes (stoker data download --dry-run)")
    say(stoker("data", "download", str(configuration), "--dry-run").rstrip())


def show_downloads(configuration: Path, served: int, files: list[Path]) -> None:
    """What came over the network, and that every byte of it is true."""
    heading("The downloads, hashed once more (stoker verify downloads)")
    say(stoker("verify", "downloads", str(configuration)).rstrip())
    size = sum(file.stat().st_size for file in files)
    say(
        f"the hub sent {served / 1e6:.2f} MB for these {size / 1e6:.2f} MB; the transfer of {files[CUT].name}"
    )
    say("was cut on purpose in its middle, and gone on with from there")


def train(configuration: Path, run_dir: Path, headless: bool) -> None:
    """Run the pipeline to its end, kill the trainer with -9 once, and prove that it resumed."""
    heading("The pipeline: receipts, shards, training (stoker run)")
    arguments = ["run", str(configuration), "--until-done"] + (["--headless"] if headless else [])
    pipeline = subprocess.Popen([STOKER, *arguments])
    try:
        kill_trainer_once(pipeline, run_dir)
        code = pipeline.wait()
    except BaseException:
        pipeline.send_signal(signal.SIGTERM)
        pipeline.wait()
        raise
    if code != 0:
        raise DemoError(f"stoker run ended with {code}; its last lines above say why")


def kill_trainer_once(pipeline: subprocess.Popen[bytes], run_dir: Path) -> None:
    moment = watch.until(lambda: watch.past_a_checkpoint(run_dir), pipeline)
    trainer = watch.trainer_of(run_dir)
    if moment is None or trainer is None:
        raise DemoError(
            "the run ended before there was a trainer to kill past a checkpoint; use more --steps"
        )
    step, sealed = moment
    trainer.kill()
    heading_in_run(
        f"kill -9 of the trainer (pid {trainer.pid}) at step {step}; newest checkpoint is step {sealed}"
    )
    resumed = watch.until(lambda: watch.resumed(run_dir, trainer.pid), pipeline)
    if resumed is None:
        raise DemoError("the trainer was not started again after the kill")
    heading_in_run(f"resumed from {resumed}")


def show_audit(configuration: Path) -> None:
    heading("The audit: books x manifests x sizes x plan x checkpoints (stoker audit --deep)")
    say(stoker("audit", str(configuration), "--deep").rstrip())


def show_losses(run_dir: Path, shards: Path, judged: bool) -> None:
    """The losses at start and end; a run shorter than the demo's own is shown and not judged."""
    heading("Held-out loss, in nats a token")
    rows = watch.rows(run_dir / "log" / "metrics.jsonl")
    held_out = [(row["step"], row["val_loss"]) for row in rows if "val_loss" in row]
    if len(held_out) < 2:
        raise DemoError("the training log has no held-out loss at start and end")
    from demolib.baseline import unigram_loss

    unigram = unigram_loss(run_dir, shards)
    (first_step, first), (last_step, last) = held_out[0], held_out[-1]
    say(f"step {first_step:>5}   {first:.3f}")
    say(f"step {last_step:>5}   {last:.3f}")
    say(f"unigram      {unigram:.3f}   (token frequencies of the training shards: knows words, no order)")
    if not judged:
        say("fewer steps than the demo's own: not judged")
    elif last > min(first, unigram) - WELL_BELOW_NATS:
        raise DemoError(f"the model ({last:.3f}) is not well below the unigram baseline ({unigram:.3f})")


def show_sample(run_dir: Path) -> Path:
    newest = sorted((run_dir / "checkpoints").glob("step-*"))[-1]
    heading(f"A sample from {newest.name} (stoker checkpoint generate)")
    say(
        stoker(
            "checkpoint", "generate", str(newest), "--prompt", PROMPT, "--tokens", "60", "--seed", "1"
        ).rstrip()
    )
    return newest


def show_places(folder: Path, configuration: Path, newest: Path) -> None:
    heading("Where everything is")
    for what, where in (
        ("configuration", configuration),
        ("parquet, as the hub served it", hub.place(folder / "hub")),
        ("parquet, as it was fetched", folder / "hot" / "landing"),
        ("receipts, records, plan, events", folder / "state"),
        ("quarantine", folder / "state" / "quarantine"),
        ("token shards", folder / "hot" / "shards"),
        ("newest checkpoint", newest),
    ):
        say(f"{what:<32} {where}")
    name = configuration
    say(f"\nLook around: {STOKER} status {name}\n             {STOKER} events {name}")


def train_from_a_hub(folder: Path, steps: int | None, headless: bool) -> Path:
    """Serve the corpus from a hub, train on it, and end the hub; returns the pipeline's file."""
    paths = make_corpus(hub.place(folder / "hub"))
    with hub.hub_over(folder / "hub") as served:
        configuration = write_configuration(folder, steps, hub.source_line(served))
        look_first(configuration)
        served.control("forget")
        hub.cut_one_transfer(served, paths[CUT].name)
        train(configuration, folder / "state" / "runs" / "main", headless)
        show_downloads(configuration, served.served(), paths)
    return configuration


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("demo-run"), help="where everything goes")
    parser.add_argument("--steps", type=int, help="training steps (default: those of etc/demo.yaml)")
    parser.add_argument("--headless", action="store_true", help="plain lines, no colour")
    try:
        options = parser.parse_args()
        if options.steps is not None and options.steps < 1:
            parser.error(f"--steps is {options.steps}: at least one step is needed")
    except SystemExit as ending:
        return EX_USAGE if ending.code else 0
    folder = options.dir.resolve()
    run_dir = folder / "state" / "runs" / "main"
    started = time.monotonic()
    try:
        hub.use_no_proxy()
        fresh_directory(folder)
        configuration = train_from_a_hub(folder, options.steps, options.headless)
        dataset = json.loads((next((folder / "state" / "datasets").glob("*.json"))).read_text())["dataset"]
        show_audit(configuration)
        judged = options.steps is None or options.steps >= own_steps()
        show_losses(run_dir, folder / "hot" / "shards" / dataset, judged)
        newest = show_sample(run_dir)
        show_places(folder, configuration, newest)
    except DemoError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: stopped", file=sys.stderr)
        return 130
    say(f"\nThe demo ended well after {time.monotonic() - started:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
