"""Checkpoints of trainers of the user's own, for tests: their files, and a watch over them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.checkpoints.external.place import Place
from stoker.checkpoints.external.watch import End, Watch
from support.checkpoint_data import body_of

AT_REST = End(is_clean=True)  # of a trainer that ended by itself


def name_before(aside: str) -> str:
    """The name that something had before it was put aside; any other name as it is."""
    return aside.split("-", 4)[4] if aside.startswith(".stoker-before-") else aside


def archive(content: bytes) -> bytes:
    """What torch.save writes: a zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr(zipfile.ZipInfo("archive/data.pkl"), content)  # without the time
    return file.getvalue()


def tensors(content: bytes) -> bytes:
    """A safetensors file with one tensor."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(content)], "data_offsets": [0, len(content)]}})
    return len(header).to_bytes(8, "little") + header.encode() + content


def hf_files(content: bytes = b"weights") -> dict[str, bytes]:
    """The files of a checkpoint of HF's Trainer, the last one last."""
    return {
        "model.safetensors": tensors(content),
        "training_args.bin": archive(b"arguments"),
        "optimizer.pt": archive(content),
        "trainer_state.json": b'{"global_step": 1}',
    }


def write_tree(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files, by their path below `folder`."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@dataclass
class Ground:
    """A run's state directory and its trainer's directory, and what a watch told."""

    root: Path
    now: float = 0.0
    words: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for path in (self.out, self.checkpoints, self.quarantine, self.abandoned):
            path.mkdir(parents=True, exist_ok=True)
        for name in ("plan.jsonl", "timelines.jsonl"):
            (self.root / name).touch()

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def checkpoints(self) -> Path:
        return self.root / "state" / "checkpoints"

    @property
    def quarantine(self) -> Path:
        return self.root / "state" / "quarantine"

    @property
    def abandoned(self) -> Path:
        return self.root / "state" / "abandoned"

    def place(self, pattern: str | None = "out/*", **changes: Any) -> Place:
        history = ((0, None),)
        given_up = (*self.quarantine.iterdir(), *self.abandoned.iterdir())
        state = self.root / "state"
        place = Place(
            self.root, pattern, self.checkpoints, given_up, history, state, self.abandoned / "replaced"
        )
        for name, value in changes.items():
            setattr(place, name, value)
        return place

    def watch(self, pattern: str | None = "out/*", *, quiet_s: float = 5.0, **changes: Any) -> Watch:
        """A watch with a clock of its own, `now`."""
        logs = {name: self.root / name for name in ("plan.jsonl", "timelines.jsonl")}
        place = self.place(pattern, **changes)
        return Watch(
            place,
            "l1",
            body_of(0),
            logs,
            self._tell,
            quiet_s=quiet_s,
            first_quiet_s=3 * quiet_s,
            clock=lambda: self.now,
        )

    def _tell(self, word: str, **fields: Any) -> None:
        self.words.append((word, fields))

    def told(self, word: str) -> list[dict[str, Any]]:
        return [fields for each, fields in self.words if each == word]

    @property
    def sealed(self) -> list[str]:
        return sorted(path.name for path in self.checkpoints.iterdir())

    def body(self, number: int) -> dict[str, Any]:
        """The checkpoint.json of a sealed checkpoint."""
        found: dict[str, Any] = json.loads(
            (self.checkpoints / f"step-{number:09d}" / "checkpoint.json").read_bytes()
        )
        return found

    def quiet(self, watch: Watch) -> None:
        """Let the watch see that nothing changes."""
        for _ in range(2):
            watch.scan()
            self.now += watch.first_quiet_s
        watch.scan()

    def save(self, name: str, content: bytes) -> Path:
        """Write out/<name> as torch.save does."""
        return write_tree(self.out, {name: archive(content)}) / name
