"""Text out of a sealed checkpoint, which needs nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from stoker.cli.which_run import checkpoints_at
from stoker.release.generate import generate
from stoker.release.sampling import Sampling, TextModel, pick
from stoker.store.errors import DataError, UsageError
from support.trainer_run import SEQ_LEN, TrainerRun


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    run = TrainerRun(tmp_path / "run", steps=3)
    run.plan(24)
    with run.training(heldout=None) as training:
        training.run()
    return run.checkpoints()[-1]


def test_a_text_is_continued_from_the_checkpoint_alone_and_alike_for_a_seed(
    checkpoint: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "elsewhere" / checkpoint.name
    alone.parent.mkdir()
    checkpoint.rename(alone)
    shutil.rmtree(tmp_path / "run")
    model = TextModel(alone)
    one = model.continue_text("the café <|endoftext|>", 20, Sampling(seed=1))
    assert one.startswith("the café <|endoftext|>")
    assert one == model.continue_text("the café <|endoftext|>", 20, Sampling(seed=1))
    assert one != model.continue_text("the café <|endoftext|>", 20, Sampling(seed=2))

    done = CliRunner().invoke(generate, [str(alone.parent), "--prompt", "tea", "--tokens", "3"])
    assert done.exit_code == 0 and done.output.startswith("tea")


def test_a_text_longer_than_the_windows_goes_on_from_the_last_half(checkpoint: Path) -> None:
    text = TextModel(checkpoint)
    model, context, begins = text._model, [text._eot, 7, 8], 0
    drawn = list(text._draw(context[1:], 4 * SEQ_LEN, Sampling(temperature=0)))
    for token in drawn:
        if len(context) - begins > SEQ_LEN:
            begins = len(context) - SEQ_LEN // 2
        with torch.inference_mode():
            logits = model(torch.tensor([context[begins:]]))[0, -1, : text._ids]
        assert token == int(logits.argmax())
        context.append(token)
    assert len(drawn) == 4 * SEQ_LEN


def test_temperature_0_takes_the_likeliest_and_top_k_draws_from_no_other() -> None:
    logits = torch.tensor([0.0, 3.0, 2.9, -1.0])
    generator = torch.Generator().manual_seed(1)
    assert pick(logits, Sampling(temperature=0), generator) == 1
    assert pick(logits, Sampling(temperature=1e-50), generator) == 1
    drawn = {pick(logits, Sampling(temperature=5.0, top_k=2), generator) for _ in range(50)}
    assert drawn == {1, 2}
    assert len({pick(logits, Sampling(temperature=50.0, top_k=0), generator) for _ in range(200)}) == 4


def test_top_p_draws_from_the_fewest_that_have_the_share() -> None:
    logits = torch.log(torch.tensor([0.1, 0.5, 0.15, 0.25]))
    generator = torch.Generator().manual_seed(1)

    def drawn(**how: Any) -> set[int]:
        return {pick(logits, Sampling(1.0, seed=0, **how), generator) for _ in range(100)}

    assert drawn(top_k=0, top_p=0.74) == {1, 3}
    assert drawn(top_k=0, top_p=0.76) == {1, 2, 3}
    assert drawn(top_k=2, top_p=0.6) == {1}  # of two, the likelier has two thirds
    assert drawn(top_k=0, top_p=1e-9) == {1}


def test_a_checkpoint_with_a_flipped_bit_gives_no_text(checkpoint: Path) -> None:
    weights = checkpoint / "model-00001.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    failed = CliRunner().invoke(generate, [str(checkpoint), "--prompt", "tea"])
    assert isinstance(failed.exception, DataError) and failed.exception.exit_code == 65
    assert "model-00001.safetensors" in str(failed.exception)


@pytest.mark.parametrize("share", ["0", "1.5"])
def test_a_share_that_is_none_is_refused(share: str, tmp_path: Path) -> None:
    refused = CliRunner().invoke(generate, [str(tmp_path), "--top-p", share])
    assert refused.exit_code == 2 and "--top-p" in refused.output  # `stoker` makes it 64


def test_a_run_directory_stands_for_its_sealed_checkpoints(tmp_path: Path) -> None:
    for name in ("step-000000900", "step-000001000", ".tmp-step-x-000001100"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    older, newest = (tmp_path / "checkpoints" / name for name in ("step-000000900", "step-000001000"))
    assert checkpoints_at(tmp_path) == checkpoints_at(tmp_path / "checkpoints") == [older, newest]
    assert checkpoints_at(newest) == [newest]
    with pytest.raises(UsageError):
        checkpoints_at(tmp_path / "nowhere")
