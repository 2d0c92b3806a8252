"""The examples of trainers of the user's own under a real supervisor: stacks, kill -9, stop, resume.

An import of torch takes 2 s of a processor, of transformers or Lightning 5, which every launch pays: in every
run of the tests test_external_checkpoints proves client, kill, stop and resume with lighter trainers.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from support.examples import Example, make_example

SHAPE = {"block": 32, "layers": 1, "heads": 2, "width": 16, "vocab": 64}
NANOGPT = {"block_size": 32, "n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 64, "batch_size": 4}
NANOGPT |= {"gradient_accumulation_steps": 8, "eval_interval": 5, "eval_iters": 1, "learning_rate": 0.003}
HF = {"output_dir": "out", "save_steps": 20, "max_steps": 100_000, "logging_steps": 1, "eval_steps": 20}
HF |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "eval_strategy": "steps"}
HF |= {"use_cpu": "true", "report_to": "none", "disable_tqdm": "true", "dataloader_num_workers": 1}
LIGHTNING = {"steps": 100_000, "batch": 32, "save_every": 20, "eval_every": 20, "out": "out"}


def words(**values: object) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def goes_on(example: Example) -> None:
    """A trainer that is asked to stop, then one that is killed with -9: the next one makes the step after."""
    example.sealed()
    example.dump("train.py")
    assert example.stop() == 0
    last = example.told(1)[-1]
    assert example.ended(1)["exit_class"] == "stopped_as_asked"
    example.start()
    assert example.launched(2)["resume_step"] == last
    assert example.told(2)[0] == last + 1
    sealed = example.sealed(after=example.told(2)[0])
    os.kill(example.trainer().pid, signal.SIGKILL)
    assert example.ended(2)["exit_class"] == "killed"
    resumed = example.launched(3)["resume_step"]
    assert resumed >= sealed
    assert example.told(3)[0] == resumed + 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "settings", "external"),
    [
        ("train_nanogpt.py", NANOGPT, {}),
        ("train_hf.py", SHAPE | HF, {"checkpoints": "out/checkpoint-*"}),
        ("train_lightning.py", SHAPE | LIGHTNING, {"checkpoints": "out/step=*.ckpt"}),
    ],
)
def test_a_trainer_is_resumed_with_the_next_step(
    tmp_path: Path, script: str, settings: dict[str, object], external: dict[str, str]
) -> None:
    with Example(make_example(tmp_path / "home", script, *words(**settings), **external)) as example:
        goes_on(example)


@pytest.mark.long
def test_an_unchanged_hf_trainer_saves_when_it_is_asked_to_stop_and_goes_on_with_the_next_step(
    tmp_path: Path,
) -> None:
    """Level 0: it saves three seconds later, in a directory that says until then that it is incomplete."""
    command = words(**SHAPE, **HF | {"save_steps": 100_000, "enable_jit_checkpoint": "true"})
    external = {"checkpoints": "out/checkpoint-*", "resume": ["--resume_from_checkpoint", "{path}"]}
    run = make_example(tmp_path / "home", "train_hf.py", *command, marked=False, **external)
    with Example(run) as example:
        example.printed(1, "'loss'")
        assert example.stop() == 0
        assert example.ended(1)["exit_class"] == "stopped_as_asked"
        example.start()
        first = example.sealed()
        assert example.launched(2)["resume_step"] == first
        example.printed(2, "'loss'")
        assert example.stop() == 0
        example.start()
        second = example.sealed(after=first)
    state = run.run.checkpoints / f"step-{second:09}/files/checkpoint-{second}/trainer_state.json"
    history = json.loads(state.read_bytes())["log_history"]
    assert [row["step"] for row in history if "loss" in row] == list(range(1, second + 1))
