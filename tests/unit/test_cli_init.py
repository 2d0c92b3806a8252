"""`stoker init`: what the file says of a machine, and which answers are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.cli.pipeline import init_sizes
from stoker.cli.pipeline.init_sizes import GIB, TOKENS, Machine, model_for, sized
from stoker.config.checks import disk_notes, unusual_tokens
from stoker.config.load import examples_dir, load_pipeline
from support.parquet import write_fineweb

SMALL = Machine(cores=2, memory_bytes=8 * GIB, gpu_bytes=0, hot_bytes=100 * GIB)
LARGE = Machine(cores=32, memory_bytes=256 * GIB, gpu_bytes=80 * GIB, hot_bytes=4000 * GIB)


@pytest.mark.parametrize(
    ("machine", "tokens", "has_warm", "expected"),
    [
        (SMALL, 50_000_000, False, {"free_floor": "10GiB", "queue_bytes": "9GiB", "workers": 1}),
        (SMALL, 50_000_000, False, {"limit": "51M", "start_tokens": "5M", "evaluate_tokens": 18_432}),
        (LARGE, 9_500_000_000, False, {"free_floor": "20GiB", "queue_bytes": "20GiB", "workers": 30}),
        (LARGE, 9_500_000_000, False, {"limit": "9600M", "start_tokens": "100M", "segment_tokens": "1B"}),
        (LARGE, 9_500_000_000, False, {"evaluate_tokens": 131_072}),
        (replace(LARGE, memory_bytes=9 * GIB), 10**9, False, {"workers": 4}),
        (replace(SMALL, cores=1, memory_bytes=0), 10**9, False, {"workers": 1}),
        # Hot holds less than the run reads: with warm the sets move, without it they are fewer.
        (replace(SMALL, hot_bytes=2 * GIB), 2 * 10**9, False, {"limit": "770M", "segment_tokens": "320M"}),
        (replace(SMALL, hot_bytes=2 * GIB), 2 * 10**9, True, {"limit": "2B", "start_tokens": "100M"}),
        (replace(SMALL, hot_bytes=0), 2048, False, {"limit": "1", "queue_bytes": "64MiB", "free_floor": "0"}),
    ],
)
def test_the_sizes_follow_from_cores_memory_gpu_and_disk(
    machine: Machine, tokens: int, has_warm: bool, expected: dict[str, object]
) -> None:
    found = sized(machine, tokens, has_warm=has_warm)
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(("gpu", "model"), [(0, "demo"), (8 * GIB, "124m"), (24 * GIB, "474m")])
def test_the_model_follows_from_the_gpu(gpu: int, model: str) -> None:
    assert model_for(gpu) == model
    assert TOKENS.keys() == {path.stem for path in (examples_dir() / "models").glob("*.yaml")}


@pytest.mark.parametrize("machine", [SMALL, LARGE], ids=["cpu", "gpu"])
@pytest.mark.parametrize("model", TOKENS)
def test_each_model_is_trained_as_usual_and_fits_its_disk(
    machine: Machine, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.cli.pipeline.init.measured", lambda _: machine)
    file = tmp_path / "new.yaml"
    assert exit_code(["init", str(file), "--source", "hf://owner/name", "--model", model]) == 0
    pipeline = load_pipeline(file, {})
    train = pipeline.train
    assert not disk_notes(pipeline, machine.hot_bytes)
    assert not unusual_tokens(train, 32_000)
    assert train.schedule.warmup_steps < train.horizon // 5
    assert (train.precision, train.compile) == (
        ("auto", "auto") if machine.gpu_bytes else ("float32", "none")
    )
    assert (pipeline.dataset.source.kind, pipeline.dataset.source.repo) == ("hub", "owner/name")


def test_flags_alone_make_a_commented_file_that_passes_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(init_sizes, "gpu_bytes", lambda: 0)
    write_fineweb(tmp_path / 'the "source"' / "a.parquet", rows=10)
    words = ["init", "own run.yaml", "--source", 'the "source"', "--text-column", "text", "--warm", "big"]
    assert exit_code(words) == 64
    assert "nothing is written: own run.yaml:4: name: 'own run' is not a name" in capsys.readouterr().err
    Path("files").mkdir()
    words[1] = "files/own.yaml"
    words += ["--model", "tiny", "--tokens", "20M", "--hot", "fast", "--tokenizer", ""]
    assert exit_code(words) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "wrote files/own.yaml; next:",
        *(f"  stoker {one} files/own.yaml" for one in ("config check", "doctor", "run")),
    ]
    assert exit_code(["config", "check", "files/own.yaml"]) == 0
    assert "own version 1 -> run main: 9765 steps, 20.0 M tokens" in capsys.readouterr().out
    pipeline = load_pipeline("files/own.yaml", {})
    assert (pipeline.state, pipeline.hot, pipeline.warm) == (
        tmp_path / "files" / "own" / "state",
        tmp_path / "fast",
        tmp_path / "big",
    )
    text = Path("files/own.yaml").read_text()
    assert all(
        "    # " in line for line in text.splitlines() if line.startswith(("name", "state", "hot", "warm"))
    )
    assert exit_code(words) == 64
    assert "files/own.yaml: it exists; name another file" in capsys.readouterr().err
    assert Path("files/own.yaml").read_text() == text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["new.yaml"], "Missing option '--source'"),
        (["no/such/new.yaml", "--source", "x"], "there is no such directory; name another file"),
        (
            ["new.yaml", "--source", "x", "--tokens", "2 apples"],
            "'apples' is not a unit here; write one like",
        ),
        (["new.yaml", "--source", "x", "--tokens", "9"], "new.yaml:28: train.tokens: 9 tokens do not fill"),
        (["new.yaml", "--source", "x", "--model", "huge"], "'huge' is not one of 'tiny', 'demo'"),
        (["new.yaml", "--source", "hf://https://x/y"], "new.yaml:10: dataset.source.repo: "),
        (["new.yaml", "--source", "x", "--hot", "new/state"], "hot: "),
    ],
)
def test_an_answer_that_no_pipeline_can_have_is_refused_and_nothing_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stoker.cli.pipeline.init.gpu_bytes", lambda: 0)
    assert exit_code(["init", *words]) == 64
    assert told in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_file_of_urls_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text("https://example.org/a.parquet\n")
    assert exit_code(["init", "--source", "list.txt", "--model", "demo", "--tokenizer", "~/own.json"]) == 0
    pipeline = load_pipeline("mine.yaml", {})
    assert pipeline.dataset.source.urls_file == tmp_path / "list.txt"
    assert pipeline.tokenizer.file == Path.home() / "own.json"
