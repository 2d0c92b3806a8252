"""An extra can be deleted with its folder: the core runs without it, and its commands are not offered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stoker.cli.main import COMMANDS
from stoker.store.layout import DAEMONS
from support.parquet import write_fineweb
from support.pipelines import Template, make_pipeline
from support.training import TrainPipeline, small_trainer
from support.waiting import LONG_S

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["stoker"]["budgets"]["extras"]
BY_EXTRA = {
    extra: [name for name, (place, _) in COMMANDS.items() if place.startswith(f"{extra}.")]
    for extra in EXTRAS
}
ASKED = f"""
import sys, stoker, {", ".join(f"stokerd.{name}" for name in DAEMONS)}
from stoker.cli.main import exit_code
exit_code(["--help"])
for name in sys.argv[1:]:
    print(name, exit_code(name.split()))
print(list(stoker.__path__))
print(*{{".".join(name.split(".")[:2]) for name in sys.modules}})
"""


def without(extras: list[str], home: Path) -> dict[str, str]:
    """The environment in which Python finds a copy of the code that lacks these extras."""
    for part in ("lib", "daemons"):
        shutil.copytree(ROOT / part, home / part)  # with what is compiled already
    for extra in extras:
        shutil.rmtree(home / "lib" / extra.replace(".", "/"))
    path = [str(home / "lib"), str(home / "daemons"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


ALONE = [pytest.param([extra], marks=pytest.mark.long) for extra in EXTRAS]


@pytest.mark.parametrize("gone", [EXTRAS, *ALONE], ids=" ".join)
def test_without_an_extra_the_daemons_begin_and_its_commands_are_not_offered(
    gone: list[str], tmp_path: Path
) -> None:
    names = [name for extra in gone for name in BY_EXTRA[extra]]
    command = [sys.executable, "-c", ASKED, *names]
    done = subprocess.run(command, env=without(gone, tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told, place, loaded = done.stdout.rsplit("\n", 3)[:3]
    assert place == f"[{str(tmp_path / 'lib/stoker')!r}]"
    assert not {*EXTRAS} & {*loaded.split()}, "the help imports no extra"
    assert f"  {next(iter(COMMANDS))} " in told
    for name in names:
        extra = COMMANDS[name][0].rsplit(".", 1)[0]
        assert f"  {name} " not in told
        assert f"\n{name} 69" in told
        assert f"stoker: `stoker {name}` is an extra, and {extra} is not installed here" in done.stderr


def test_without_any_extra_a_folder_of_parquet_becomes_a_finished_run(
    drained: Template, tmp_path: Path
) -> None:
    data = make_pipeline(tmp_path, tokenizer=drained.tokenizer, train__deterministic=True)
    write_fineweb(data.source / "0.parquet", rows=60)
    stoker = tmp_path / "stoker"
    stoker.write_text("from stoker.cli.main import main; main()")
    with small_trainer():
        command = [sys.executable, str(stoker), "run", str(data.file), "--until-done"]
        environ = without(EXTRAS, tmp_path / "code")
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=LONG_S
        )
    assert done.returncode == 0, done.stderr
    assert TrainPipeline(data).record()["finished"] == "steps"
