"""What evaluations of real checkpoints promote: chance nearly nothing, planted noise nothing."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.checkpoints.format import BODY
from stoker.cli.worker_jobs import Workers
from stoker.config.load import examples_dir
from stoker.config.schema_evaluation import Promote
from stoker.evaluation.command import EVALUATION
from stoker.evaluation.compare import Sample, compare
from stoker.evaluation.samples import Rows, read_samples
from stoker.shards.tokenize.engine import HFEngine
from stoker.shards.tokenize.tokenizer import load_tokenizer
from stoker.store.direct import hash_file
from stoker.supervise.evaluation.lines import parse_line
from stoker.supervise.evaluation.promotion import decide_promotion
from stoker.training.model.transformer import Model
from support.model_checkpoints import checkpoint_of

pytestmark = pytest.mark.long
BITS, MARGIN, TRIALS = "heldout/bits_per_byte", 0.05, 200
SUITE = examples_dir() / "suites" / "heldout.yaml"
TEXTS = SUITE.parent / "heldout" / "texts.jsonl"


class Bench:
    """Evaluates checkpoints in worker processes, as the supervisor does."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.trained = self.checkpoint("trained", self._fit)

    def checkpoint(self, name: str, change: Callable[[Model], Any]) -> Path:
        return checkpoint_of(self.home / name, change=change)[0]

    def noisy(self, name: str, noise: float) -> Path:
        def plant(model: Model) -> None:
            model.load_state_dict(self.weights)
            generator = torch.Generator().manual_seed(3)
            with torch.no_grad():
                for one in model.parameters():
                    one.add_(noise * torch.randn(one.shape, generator=generator))

        return self.checkpoint(name, plant)

    def _fit(self, model: Model) -> None:
        """Learns the texts, so that noise in the weights does harm."""
        tokenizer = load_tokenizer(self.home / "trained" / "tokenizer.json")
        texts = [json.loads(line)["text"] for line in TEXTS.read_text().splitlines()]
        ids = [
            token for each in HFEngine(tokenizer).encode(texts) for token in (tokenizer.eot, *map(int, each))
        ]
        seen, how = torch.tensor(ids), torch.optim.Adam(model.parameters(), 1e-2)
        chance = torch.Generator().manual_seed(2)
        for _ in range(150):
            places = torch.randint(len(ids) - 64, (32, 1), generator=chance) + torch.arange(64)
            logits = model(seen[places[:, :-1]])
            how.zero_grad()
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), seen[places[:, 1:]].flatten()).backward()
            how.step()
        self.weights = {name: value.clone() for name, value in model.state_dict().items()}

    def evaluate(
        self, made: Path, baseline: dict[str, Any] | None, suite: Path = SUITE
    ) -> list[dict[str, Any]]:
        task = {
            **{"checkpoint": str(made), "digest": hash_file(made / BODY).sha256, "suite": str(suite)},
            **{"scratch": str(self.home), "samples": str(self.home / "samples"), "samples_bytes": 1 << 20},
            **{"device": "cpu", "batch": 8, "threads": 1, "margins": {BITS: MARGIN}, "baseline": baseline},
        }
        with Workers() as workers:
            found: list[dict[str, Any]] = workers.run(EVALUATION, task, "it failed", lambda _: None)[
                "evaluated"
            ]
        return found

    def as_baseline(self, line: dict[str, Any], made: Path | None = None) -> dict[str, Any]:
        kept = {"suite_digest": line["suite_digest"], "samples": line["samples"]}
        return {"checkpoint": made and str(made), "digest": line["checkpoint_digest"], **kept}

    def rows(self, line: dict[str, Any]) -> Rows:
        return read_samples(self.home / "samples" / line["samples"])


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("verdicts"))


@pytest.fixture(scope="module")
def base(bench: Bench) -> dict[str, Any]:
    return bench.evaluate(bench.trained, None)[0]


@pytest.mark.parametrize(("noise", "expected"), [(0.1, {"worse"}), (0.005, {"doubt", "not_worse"})])
def test_noise_in_the_weights_is_worse_beyond_the_margin_alone(
    bench: Bench, base: dict[str, Any], noise: float, expected: set[str]
) -> None:
    (line,) = bench.evaluate(bench.noisy(f"noise-{noise}", noise), bench.as_baseline(base))
    lost = line["metrics"][BITS]["value"] - base["metrics"][BITS]["value"]
    found = line["against"]["verdicts"][BITS]
    print(f"noise {noise}: {lost:+.4f} bits per byte, {found}")
    assert found["difference"] == pytest.approx(-lost)
    assert (lost > MARGIN) == (expected == {"worse"})
    assert found["verdict"] in expected


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_equal_models_are_promoted_in_five_percent_at_most(
    bench: Bench, base: dict[str, Any], noise: float
) -> None:
    """Texts are drawn with replacement 200 times; the same weights, and a pair whose mean difference is 0."""
    theirs = bench.rows(base)
    if noise:
        (line,) = bench.evaluate(bench.noisy(f"noise-{noise}", noise), None)
        ours = {row["doc"]: row["value"] for row in bench.rows(line)}
        bits = [(ours[row["doc"]] - row["value"], row["weight"]) for row in theirs]
    else:
        bits = [(0.0, row["weight"]) for row in theirs]
    mean = sum(each for each, _ in bits) / sum(weight for _, weight in bits)
    policy, chance = Promote.model_validate({"primary": BITS}), random.Random(32)
    for sign in (1, -1):  # either of the two may be the candidate: differences are skewed
        promoted = 0
        for trial in range(TRIALS):
            drawn = [chance.randrange(len(theirs)) for _ in theirs]
            sides = [
                [
                    Sample(
                        str(n), theirs[at]["value"] + share * (bits[at][0] - mean * bits[at][1]), bits[at][1]
                    )
                    for n, at in enumerate(drawn)
                ]
                for share in (sign, 0)
            ]
            found = compare(*sides, margin=0.0, higher_is_better=False, ratio=True, seed=trial)
            told = {"v": 1, "step": 8, "timeline": 0, "promotion": None}
            new = base | told | {"checkpoint_digest": "new"}
            new["against"] = {"digest": base["checkpoint_digest"], "verdicts": {BITS: vars(found)}}
            lines = [parse_line(base | told | {"step": 7}), parse_line(new)]
            decided = decide_promotion(policy, lines, "new", base["checkpoint_digest"])
            promoted += decided.verdict == "promoted"
        print(f"noise {noise}, sign {sign}: {promoted} of {TRIALS} promoted")
        assert promoted <= TRIALS * 0.05
        assert noise or not promoted


def test_other_order_or_another_text_is_no_pair_with_what_was_kept(
    bench: Bench, base: dict[str, Any]
) -> None:
    made = bench.noisy("changed", 0.1)
    (usual,) = bench.evaluate(made, bench.as_baseline(base))
    shutil.copytree(SUITE.parent / "heldout", bench.home / "heldout")
    suite = Path(shutil.copy(SUITE, bench.home))
    texts = TEXTS.read_text().splitlines(keepends=True)
    for lines in (texts[::-1], [texts[0].replace("ferry", "boat"), *texts[1:]]):
        (bench.home / "heldout" / "texts.jsonl").write_text("".join(lines))
        (alone,) = bench.evaluate(made, bench.as_baseline(base), suite)
        assert alone["against"] is None and alone["suite_digest"] != usual["suite_digest"]
        again, line = bench.evaluate(made, bench.as_baseline(base, bench.trained), suite)
        assert again["checkpoint_digest"] == base["checkpoint_digest"]
        found, before = (each["against"]["verdicts"][BITS] for each in (line, usual))
        assert found["verdict"] == before["verdict"] == "worse"
        assert found["difference"] == pytest.approx(before["difference"], rel=0.05)
