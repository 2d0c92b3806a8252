"""What is run and how fast: a trainer, what it tells Stoker, how long its saves take; its pipeline file."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stoker.supervise.external import stoker_client
from support.external_kills.older_transformers import transformers_4
from support.external_trainer import make_external
from support.training import TrainPipeline

SCRIPTS = Path(__file__).parent / "trainers"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


@dataclass(frozen=True)
class Trainer:
    """A script of `trainers`, the words after it, and the glob of what it saves."""

    script: str
    checkpoints: str
    words: tuple[str, ...] = ()
    is_torchrun: bool = False
    needs_transformers_4: bool = False


TRAINERS = {
    "folder": Trainer("plain.py", "out/last", ("folder",)),
    "file": Trainer("plain.py", "out/last.json", ("file",)),
    "torchrun": Trainer("ranks.py", "out/step-*", is_torchrun=True),
    "lightning": Trainer("lightning_pl.py", "out/step=*.ckpt"),
    "hf5": Trainer("hf.py", "out/checkpoint-*"),
    "hf4": Trainer("hf.py", "out/checkpoint-*", needs_transformers_4=True),
}


# lightning/stop: as etc/external/train_lightning.py does it.
# Of a directory that is written again in place the first save counts as over after six times its pause.
IN_PLACE = "folder/glob"
NAMES = (*(f"{trainer}/{how}" for trainer in TRAINERS for how in ("told", "glob")), "lightning/stop")


@dataclass(frozen=True)
class Pace:
    """Seconds that a save takes, pauses within, and that a step takes; a save every so many steps."""

    save_s: float = 20.0
    pause_s: float = 10.0
    step_s: float = 1.0
    every: int = 25

    @property
    def quiet_s(self) -> float:
        """After this a save counts as over, where the glob alone tells: longer than the pause."""
        return 1.5 * self.pause_s

    @property
    def period_s(self) -> float:
        return self.every * self.step_s + self.save_s


@dataclass(frozen=True)
class Scenario:
    """A trainer, and which of its saves it tells.

    told: each one. glob: none, it has no client. stop: it has, and tells the one that a stop asks for.
    """

    trainer: str
    how: str
    pace: Pace = Pace()
    save_total_limit: int | None = None  # of the HF Trainer; None: it keeps all

    @staticmethod
    def named(name: str, pace: Pace) -> Scenario:
        """The scenario of NAMES."""
        trainer, _, how = name.partition("/")
        if name == IN_PLACE:
            pace = replace(pace, every=max(pace.every, math.ceil(8 * pace.pause_s / pace.step_s)))
        return Scenario(trainer, how, pace)

    @property
    def name(self) -> str:
        return f"{self.trainer}/{self.how}"

    @property
    def is_told(self) -> bool:
        """Whether Stoker knows of every save that it is over."""
        return self.how == "told"

    def make(self, base: Path) -> TrainPipeline:
        """Write the pipeline file, the script and what it imports below base/home."""
        home, trainer = base / "home", TRAINERS[self.trainer]
        words = ["-u", *(TORCHRUN if trainer.is_torchrun else ()), "train.py", *trainer.words]
        command = [sys.executable, *words]
        if trainer.needs_transformers_4:
            command = ["env", f"PYTHONPATH={transformers_4()}", *command]
        external: dict[str, Any] = {"checkpoints": trainer.checkpoints}
        # The default is half the pause here: what the trainer tells must count all the same.
        quiet = self.pace.pause_s / 2 if self.is_told else self.pace.quiet_s
        external["quiet"] = f"{quiet:g}s"
        run = make_external(
            home,
            (SCRIPTS / trainer.script).read_text(),
            train__command=command,
            train__external=external,
            train__checkpoint={"keep_last": 1000},
            quarantine__keep_checkpoints=1000,
            supervise__stop_time=f"{2 * self.pace.save_s + 60:.0f}s",
            supervise__no_progress_launches=1000,
        )
        shutil.copy(SCRIPTS / "ledger.py", home)
        shutil.copy(str(stoker_client.__file__), home)
        return run

    def environ(self, base: Path) -> dict[str, str]:
        """What the supervisor, and so the trainer, has in its environment."""
        own = {"how": self.how, "save_total_limit": self.save_total_limit}
        ledger = {**asdict(self.pace), **own, "ledger": str(base / "ledger.jsonl")}
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
        return {
            **threads,
            "KILLS_SETTINGS": json.dumps(ledger),
            "HF_HUB_OFFLINE": "1",
        }
