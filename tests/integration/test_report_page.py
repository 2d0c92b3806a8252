"""`stoker report` of a real run that was killed and rolled back, opened in a browser, which asks nobody."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.corpus.quarantine.directory import open_folder
from stoker.kit.process import signal_process
from stoker.observe.samples import Samples
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import utc_at
from stoker.store.requests import file_request
from support.chromium import needs_chromium, opened
from support.once import made_once
from support.pipelines import opened as pipeline_at
from support.training import TrainPipeline, make_training
from support.waiting import wait_until

SCRIPT = "<script>document.title='run'</script>.parquet"
# The page in a frame, and by how much it is wider. A script of its own would have changed its title.
FRAME = """<iframe src="{name}" style="width: {width}px; height: 900px; border: 0"></iframe><p></p><script>
onload = () => {{ const page = frames[0].document, {{scrollWidth, clientWidth}} = page.documentElement;
document.querySelector("p").textContent = page.title + "|" + (scrollWidth - clientWidth); }}</script>"""


def train(shard_sets: Path, home: Path) -> None:
    """A run whose trainer is killed, that goes back from step 60 to 20, and has something in quarantine."""
    run = make_training(shard_sets, home, train__checkpoint={"every_steps": 10, "keep_every": 10})
    layout = run.data.pipeline.layout
    daemon = run.start()
    try:
        signal_process(run.wait_for_step(12), signal.SIGKILL)
        wait_until(lambda: run.record()["finished"] == "steps", what="the end of the run")
        args = {"to": 20, "skip": [[20, 25]], "reason": f"a spike, {SCRIPT}"}
        file_request(layout, TRAIN_SUPERVISOR, "rollback", args, {"timeline": 0})
        wait_until(lambda: run.events("run_finished")[1:], what="its end after the rollback")
    finally:
        assert daemon.stop() == 0
    open_folder(layout.quarantine, "parquet", "script", {"path": SCRIPT, "reason": "magic"})
    for daemon_name, column in ((STAGE_SHARD, "builder_rss_bytes"), (TRAIN_SUPERVISOR, "trainer_rss_bytes")):
        samples = Samples(layout.samples(daemon_name))
        for minute in range(90):
            row = {"time": utc_at(time.time() - 5400 + 60 * minute), "elapsed_s": 60 * minute}
            samples.add(
                {
                    **row,
                    column: minute << 24,
                    "hot_free_bytes": (200 - minute) << 30,
                    "gpu_utilization_ratio": 0.9,
                }
            )


@pytest.fixture(scope="session")
def told(shard_sets: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainPipeline:
    home = made_once(tmp_path_factory, "told", lambda home: train(shard_sets, home))
    return TrainPipeline(pipeline_at(home))


@pytest.fixture
def page(
    told: TrainPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    monkeypatch.chdir(tmp_path)
    assert exit_code(["report", str(told.data.file)]) == 0
    assert re.fullmatch(rf"wrote {tmp_path}/data-report\.html, \d+\.\d KiB\n", capsys.readouterr().out)
    return tmp_path / "data-report.html"


def test_the_report_of_a_run_tells_its_kill_its_rollback_and_its_quarantine(page: Path) -> None:
    text = page.read_text()
    for words in (
        ">all is well, run main is finished<",
        "timeline 0, training",
        ">timeline 1, held-out: newest ",
        "timeline 1 goes back to step 20 of timeline 0: a spike, &lt;script&gt;",
        ">killed by SIGKILL<",
        f">{SCRIPT.replace('<', '&lt;').replace('>', '&gt;').replace(chr(39), '&#39;')}<",
    ):
        assert words in text, words
    assert "<script" not in text and "://" not in text
    assert text.count("<svg") == 6


@needs_chromium
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_the_report_in_its_width_and_asks_no_host(
    page: Path, tmp_path: Path, width: int
) -> None:
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(name=page.name, width=width))
    seen = opened(
        frame.as_uri(), tmp_path, "--allow-file-access-from-files", f"--window-size={width + 20},900"
    )
    assert (seen.said, seen.hosts) == ([], set())
    assert "<p>data: all is well, run main is finished|0</p>" in seen.document, seen.document[-300:]
