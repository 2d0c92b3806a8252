"""A mean of checkpoints is numpy's, of one run alone; averaged weights are read where they are asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from stoker.cli.main import exit_code
from stoker.cli.model_weights import parse_shares
from stoker.plan.timelines import Timeline
from stoker.release.sampling import Sampling, TextModel
from stoker.store.errors import UsageError
from stoker.store.log import ChainedLog
from stoker.training.model.transformer import Model
from support.model_checkpoints import checkpoint_of
from support.tokenizers import tokenizer_like

SPACED = tokenizer_like("llama3", end_last=True) + b"\n"
Capture = pytest.CaptureFixture[str]
Make = Callable[[Path, Path], Path]


def noise(seed: int) -> Callable[[Model], object]:
    dice = torch.Generator().manual_seed(seed)
    return lambda model: [
        each.data.add_(0.1 * torch.randn(each.shape, generator=dice)) for each in model.parameters()
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's directory with three checkpoints that have averaged weights, too; only looked at."""
    home = tmp_path_factory.mktemp("means") / "run"
    for step in (10, 20, 30):
        changes: dict[str, Any] = {"change": noise(step), "ema": noise(step + 1), "body": {"val_loss": 3.25}}
        checkpoint_of(home / "checkpoints", step=step, kv_heads=2, **changes)
    return home


def at(run: Path, step: int) -> str:
    return str(run / f"checkpoints/step-{step:09d}")


def export(out: Path, *words: str) -> dict[str, Any]:
    assert exit_code(["checkpoint", "export", *words, str(out)]) == 0
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize(
    ("steps", "shares", "words"),
    [
        ((10, 20, 30), None, []),
        ((10, 20, 30), None, ["--last", "3"]),
        ((20, 30), (0.25, 0.75), ["--last", "2", "--share", "0.25,0.75"]),
        ((30, 10, 20), (0.1, 0.2, 0.7), ["--share", "0.1,0.2,0.7"]),
        ((30, 20), (1.0, 0.0), ["--share", "1,0", "--weights", "ema"]),
    ],
)
def test_a_mean_is_numpys_in_float64_to_the_nearest_float32(
    steps: tuple[int, ...], shares: tuple[float, ...] | None, words: list[str], run: Path, tmp_path: Path
) -> None:
    kind = ["--weights", "ema"] if "ema" in words else []
    parts = [export(tmp_path / str(step), at(run, step), *kind) for step in steps]
    sources = [str(run)] if "--last" in words else [at(run, step) for step in steps]
    found = export(tmp_path / "mean", *sources, *words)
    for name, values in found.items():
        wanted = np.average([part[name].astype(np.float64) for part in parts], axis=0, weights=shares)
        assert values.dtype == np.float32 and (values == wanted.astype(np.float32)).all(), name
    told = json.loads((tmp_path / "mean" / "config.json").read_bytes())
    named = [(one["step"], one["timeline"], one["share"]) for one in told["stoker_average"]]
    assert named == [(step, 0, share) for step, share in zip(steps, shares or [1 / 3] * 3, strict=True)]
    assert told.get("stoker_weights") == ("ema" if kind else None)
    alone = json.loads((tmp_path / str(steps[0]) / "config.json").read_bytes())
    assert not [name for name in alone if name.startswith("stoker_a")]


def test_averaged_weights_are_others_and_one_checkpoints_own_export_says_nothing_of_means(
    run: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    raw, ema = (
        export(tmp_path / "raw", at(run, 30)),
        export(tmp_path / "ema", at(run, 30), "--weights", "ema"),
    )
    assert raw.keys() == ema.keys() and not any(np.array_equal(raw[name], ema[name]) for name in raw)
    config = json.loads((tmp_path / "ema" / "config.json").read_bytes())
    assert config.pop("stoker_weights") == "ema"
    assert config == json.loads((tmp_path / "raw" / "config.json").read_bytes())
    capsysbinary.readouterr()
    asked = ["checkpoint", "generate", str(run), "--tokens", "9", "--temperature", "0", "--weights"]
    for kind, stem in (("raw", "model-"), ("ema", "ema-")):
        assert exit_code([*asked, kind]) == 0
        wanted = TextModel(Path(at(run, 30)), stem).continue_text("", 9, Sampling(temperature=0))
        assert capsysbinary.readouterr().out.decode() == f"{wanted}\n"


def test_transformers_computes_what_our_own_model_of_the_mean_does(run: Path, tmp_path: Path) -> None:
    words = [at(run, 30), at(run, 10), "--weights", "ema", "--dtype", "bfloat16"]
    assert exit_code(["bundle", *words, str(tmp_path / "out")]) == 0, "the proof is a process of its own"
    told = json.loads((tmp_path / "out" / "release.json").read_bytes())
    assert (told["proven"], told["weights"], told["step"]) == (True, "ema", 30)
    assert [one["step"] for one in told["average"]] == [30, 10] and told["checkpoint_sha256"] is None
    assert told["heldout_loss"] is None and told["evaluations"] == []
    assert told["seq_len"] == 64, "the model's, which a phase may have lengthened"
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"| 10 | 0 | 0.5 | {told['average'][1]['sha256']} |" in card and "| weights | ema |" in card


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("0.2,0.3,0.5", [0.2, 0.3, 0.5]),
        ("1,0,0", [1.0, 0.0, 0.0]),
        ("0.3333333,0.3333333,0.3333333", [0.3333333] * 3),
        ("0.33333,0.33333,0.33333", None),
        ("0.5,0.5", None),
        ("1.5,-0.5,0", None),
        ("nan,0.5,0.5", None),
        ("0.5,0.5,nan", None),
        ("inf,0,0", None),
        ("a,b,c", None),
        ("1,,", None),
    ],
)
def test_shares_are_as_many_as_the_checkpoints_and_1_together(text: str, shares: list[float] | None) -> None:
    if shares is not None:
        assert parse_shares(text, 3) == shares
    else:
        with pytest.raises(UsageError, match="1 together"):
            parse_shares(text, 3)


def infinite(model: Model) -> None:
    model.norm.weight.data[3] = -torch.inf


def other(home: Path, *, kv_heads: int = 2, **how: Any) -> Path:
    return checkpoint_of(home, kv_heads=kv_heads, **how)[0]


@pytest.mark.parametrize(
    ("make", "words", "code", "sentence"),
    [
        (lambda home, run: shutil.copytree(at(run, 30), home / "step-000000030"), "", 64, "are the same"),
        (lambda home, _: other(home, body={"run_id": "cd" * 16}), "", 65, "are of another run_id: no mean"),
        (lambda home, _: other(home, kv_heads=1), "", 65, "are of another kv_heads: no mean"),
        (lambda home, _: other(home, rope={"theta": 5e5}), "", 65, "are of another rope: no mean"),
        (lambda home, _: other(home, tokenizer=SPACED), "", 65, "are of another tokenizer: no mean"),
        (lambda home, _: other(home, change=infinite), "", 65, "norm.weight has values that are not finite"),
        (lambda home, _: other(home), "--weights ema", 65, "has no averaged weights: train.ema was off"),
        (lambda home, _: other(home), "--share 0.2,0.3,0.5", 64, "give 2 numbers"),
        (lambda home, _: other(home), "--share=", 64, "give 2 numbers"),
        (lambda home, _: other(home), "--last 2", 64, "choose from one run"),
        (lambda home, _: other(home), "--promoted", 64, "choose from one run"),
        (lambda home, _: home.parent / "nothing", "", 64, "does not exist"),
    ],
)
def test_what_has_no_mean_is_refused_with_its_name(
    *, make: Make, words: str, code: int, sentence: str, run: Path, tmp_path: Path, capsys: Capture
) -> None:
    one = make(tmp_path / "other", run)
    assert exit_code(["bundle", at(run, 30), str(one), str(tmp_path / "out"), *words.split()]) == code
    said = capsys.readouterr().err
    assert sentence in said and (words or str(one) in said)
    assert not [*tmp_path.glob("*out*")]


def test_a_checkpoint_past_a_rollback_is_in_no_mean(run: Path, tmp_path: Path, capsys: Capture) -> None:
    home = Path(shutil.copytree(run, tmp_path / "run"))
    with closing(ChainedLog(home / "timelines.jsonl")) as log:
        log.append(Timeline(1, 0, 20, (), "loss").body())
    moved = home / "abandoned" / "t0" / "step-000000030"
    for place in (Path(at(home, 30)), moved):
        assert exit_code(["checkpoint", "export", at(run, 10), str(place), str(tmp_path / "out")]) == 65
        said = capsys.readouterr().err
        assert f"{place} is past a rollback, as {home / 'timelines.jsonl'} says" in said
        if place != moved:
            moved.parent.mkdir(parents=True)
            place.rename(moved)
    moved.rename(at(home, 30))
    export(tmp_path / "mean", str(home / "checkpoints"), "--last", "2")
    assert "the mean of steps 10, 20" in capsys.readouterr().out
    assert exit_code(["checkpoint", "export", str(home), str(tmp_path / "out"), "--last", "3"]) == 64
    assert "has 2 checkpoints in its history" in capsys.readouterr().err
