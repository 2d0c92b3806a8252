"""`stoker init` on a terminal: it asks, asks again, and leaves nothing behind that was given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.config.load import load_pipeline
from support.fake_nvml import FakeDriver
from support.terminal import FullScreen
from support.waiting import LONG_S


def test_questions_are_asked_with_defaults_and_the_file_passes_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver = FakeDriver(tmp_path / "driver")
    driver.cards(1)
    terminal = FullScreen(["stoker", "init", "asked.yaml"], 80, 24, **driver.environ)
    try:
        for question, answer in {
            "a file of URLs: ": "text",
            "holds the text [text]: ": "",
            "empty to train one: ": "",
            "on a local disk [asked/state]: ": "",
            "on the fastest disk [asked/hot]: ": "",
            "empty for none: ": "",
            "Model (tiny, demo, 124m, 474m) [474m]: ": "tny",
            "'tny' is not one of": "tiny",
            "Tokens to train on [15M]: ": "many",
            "'many' is not a whole number": "20M",
        }.items():
            terminal.wait_for(question.rstrip())
            terminal.press(f"{answer}\r")
        terminal.wait_for("stoker run asked.yaml")
        assert terminal.process.wait(LONG_S) == 0
    finally:
        terminal.close()
    assert "a GPU of 80.0 GiB" in Path("asked.yaml").read_text()
    assert exit_code(["config", "check", "asked.yaml"]) == 0
    pipeline = load_pipeline("asked.yaml", {})
    assert (pipeline.train.tokens, pipeline.train.model.layers) == (20_000_000, 2)
    assert pipeline.dataset.source.path == tmp_path / "text"


def test_ctrl_c_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    terminal = FullScreen(["stoker", "init"], 80, 24)
    try:
        terminal.wait_for("a file of URLs:")
        terminal.press("text\r")
        terminal.wait_for("holds the text")
        terminal.press("\x03")
        assert terminal.process.wait(LONG_S) == 130
    finally:
        terminal.close()
    assert not [*tmp_path.iterdir()]
