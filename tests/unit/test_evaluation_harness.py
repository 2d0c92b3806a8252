"""The harness over an exported model: what our own model computes, and what it makes of bad input."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.checkpoints.format import BODY
from stoker.cli.transformers_model import write_model
from stoker.config.load import examples_dir
from stoker.evaluation import worker
from stoker.evaluation.samples import read_samples, write_samples
from stoker.evaluation.suite import digest_of, read_suite
from stoker.shards.tokenize.engine import HFEngine
from stoker.shards.tokenize.tokenizer import load_tokenizer
from stoker.store.direct import hash_file
from stoker.store.errors import DataError
from stoker.training.model.transformer import Model
from support.model_checkpoints import checkpoint_of, weights_of

SUITES = examples_dir() / "suites"
TEXTS = ["the quick brown fox", "a", "Grüße, 東京 🎉\n\n", "the file " * 40, "the record of a disk, " * 30]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A suite's folder becomes the working directory; no other test starts there."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model, Path]:
    """A checkpoint, its model, and the directory that transformers loads."""
    home = tmp_path_factory.mktemp("evaluation")
    checkpoint, model = checkpoint_of(home / "run")
    return checkpoint, model, exported(checkpoint, home / "model")


def exported(checkpoint: Path, out: Path) -> Path:
    out.mkdir()
    write_model(weights_of(checkpoint), out)
    return out


class Texts:
    """What our own model makes of texts, end-of-text before each of them once."""

    def __init__(self, checkpoint: Path, model: Model) -> None:
        frozen = load_tokenizer(checkpoint / "tokenizer.json")
        self.model, self.eot, self.engine = model, frozen.eot, HFEngine(frozen)

    def ids(self, text: str) -> list[int]:
        return [int(token) for token in self.engine.encode([text])[0]]

    @torch.inference_mode()
    def nats(self, before: list[int], ids: list[int]) -> float:
        """The log-likelihood of ids, each with as much before it as the harness's windows have."""
        width, every, total = self.model.shape.seq_len, [*before, *ids], 0.0
        for start in range(len(before), len(every), width):
            end = min(start + width, len(every))
            seen = torch.tensor([every[max(0, end - 1 - width) : end - 1]])
            logits = torch.log_softmax(self.model(seen)[0], -1)[start - end :]
            total += float(logits[torch.arange(end - start), every[start:end]].sum())
        return total


def test_log_likelihoods_are_those_of_our_own_model(made: tuple[Path, Model, Path]) -> None:
    from lm_eval.api.instance import Instance

    from stoker.evaluation.harness import ExportLM

    def asked(*arguments: str) -> Instance:
        return Instance("loglikelihood", {}, arguments, 0)

    own, lm = Texts(*made[:2]), ExportLM(str(made[2]), device="cpu", batch_size=3)
    wanted = [own.nats([own.eot], own.ids(text)) for text in TEXTS]
    assert max(len(own.ids(text)) for text in TEXTS) > 2 * own.model.shape.seq_len
    assert lm.loglikelihood_rolling([asked(text) for text in TEXTS]) == pytest.approx(wanted, rel=1e-5)
    pairs = [("the quick", " brown fox"), ("", "the fox"), ("a record", " of")]
    found = lm.loglikelihood([asked(*pair) for pair in pairs])
    lengths = [len(own.ids(context)) for context, _ in pairs]
    whole = [[own.eot, *own.ids(context + word)] for context, word in pairs]
    wanted = [own.nats(ids[: n + 1], ids[n + 1 :]) for ids, n in zip(whole, lengths, strict=True)]
    assert [nats for nats, _ in found] == pytest.approx(wanted, rel=1e-5)


def task_of(made: Path, suite: Path, samples: Path, **differs: Any) -> dict[str, Any]:
    digest = hash_file(made / BODY).sha256
    return {
        **{"checkpoint": str(made), "digest": digest, "suite": str(suite), "samples": str(samples)},
        **{"samples_bytes": 1 << 20, "device": "cpu", "batch": 8, "margins": None, "baseline": None},
        **differs,
    }


def evaluated(place: Path, *task: Any, **differs: Any) -> list[dict[str, Any]]:
    return worker._evaluated(task_of(*task, **differs), place, lambda *_, **__: None)  # type: ignore[arg-type]


def test_bits_per_byte_are_of_all_bytes_and_a_model_equals_itself(
    made: tuple[Path, Model, Path], tmp_path: Path
) -> None:
    pytest.importorskip("stoker.evaluation.compare")
    (line,) = evaluated(tmp_path, made[0], SUITES / "heldout.yaml", tmp_path / "samples")
    own, rows = Texts(*made[:2]), read_samples(tmp_path / "samples" / line["samples"])
    texts = [str(row) for row in SUITES.joinpath("heldout/texts.jsonl").read_text().splitlines()]
    assert len(rows) == len(texts) == 62 and line["samples_missing"] == 0
    found = line["metrics"]["heldout/bits_per_byte"]
    assert found["value"] == pytest.approx(
        sum(row["value"] for row in rows) / sum(row["weight"] for row in rows)
    )
    first = texts[0][len('{"text": "') : -len('"}')]
    assert rows[0]["weight"] == len(first)
    assert rows[0]["value"] * -0.6931472 == pytest.approx(own.nats([own.eot], own.ids(first)), rel=1e-5)
    assert found["n"] == 62 and 0 < found["stderr"] < 0.2 and not found["higher_is_better"]
    kept = {
        "checkpoint": None,
        "digest": "b",
        "suite_digest": line["suite_digest"],
        "samples": line["samples"],
    }
    (again,) = evaluated(
        tmp_path,
        made[0],
        SUITES / "heldout.yaml",
        tmp_path / "samples",
        baseline=kept,
        margins={"heldout/bits_per_byte": 0.01},
    )
    against = again["against"]
    assert against["digest"] == "b" and against["verdicts"]["heldout/bits_per_byte"]["verdict"] == "not_worse"
    assert again["suite_digest"] == line["suite_digest"] and again["metrics"] == line["metrics"]


def test_cases_are_a_gate_and_a_lost_baseline_shows_nothing(
    made: tuple[Path, Model, Path], tmp_path: Path
) -> None:
    lost = {"checkpoint": str(tmp_path / "gone"), "digest": "b", "suite_digest": "x", "samples": "y"}
    (line,) = evaluated(
        tmp_path, made[0], SUITES / "generation-smoke.yaml", tmp_path / "samples", baseline=lost
    )
    assert line["gate"]["of"] == 8 == line["metrics"]["generation-smoke/passed"]["n"]
    assert line["gate"]["passed"] + len(line["gate"]["failed"]) == 8 and line["against"] is None
    assert all(row["answer"] for row in read_samples(tmp_path / "samples" / line["samples"]))


def test_what_is_no_number_is_invalid_and_not_zero(tmp_path: Path) -> None:
    checkpoint, _ = checkpoint_of(tmp_path / "run")
    from safetensors.torch import load_file, save_file

    file = exported(checkpoint, tmp_path / "model") / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][3] = torch.nan
    save_file(weights, file, {"format": "pt"})
    from stoker.evaluation.harness import evaluate

    for suite in ("heldout", "generation-smoke"):
        scores, rows = evaluate(file.parent, read_suite(SUITES / f"{suite}.yaml"), "cpu", 8, lambda _: None)
        assert "is no finite number" in scores["invalid"] and not scores["metrics"] and not rows


def suite_of(home: Path, lines: str = '{"text": "a"}', tasks: str = "[mine]") -> Path:
    """A suite in a file of its own, with one task over these lines."""
    shutil.copytree(SUITES / "heldout", home / "mine")
    (home / "mine" / "texts.jsonl").write_text(lines)
    task = home / "mine" / "heldout.yaml"
    task.write_text(task.read_text().replace("task: heldout", "task: mine"))
    (home / "own.yaml").write_text(f"tasks: {tasks}\ninclude: mine\n")
    return home / "own.yaml"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda suite: suite.write_text("tasks: [mine]\ninclud: mine"),
            "own.yaml:2: includ: unknown key; did",
        ),
        (lambda suite: suite.write_text("tasks: []"), "own.yaml:1: tasks: has too few items"),
        (
            lambda suite: suite.write_text("tasks: [mine]\ninclude: other"),
            "own.yaml:2: include: is no folder",
        ),
        (lambda suite: suite.write_text(""), "own.yaml:1: is empty"),
        (lambda suite: (suite.parent / "mine/texts.jsonl").unlink(), "its tasks cannot be loaded"),
        (lambda suite: (suite.parent / "mine/texts.jsonl").write_text(""), "texts.jsonl is empty"),
        (lambda suite: (suite.parent / "mine/texts.jsonl").write_text("{}\n"), "texts.jsonl:1: a line is a"),
        (
            lambda suite: (suite.parent / "mine/texts.jsonl").write_text(
                '{"text": "a"}\n{"id": "a", "prompt": "b", "checks": {"min_char": 1}}'
            ),
            "texts.jsonl:2: there is no check 'min_char'; did you mean 'min_chars'?",
        ),
        (
            lambda suite: (suite.parent / "mine/texts.jsonl").write_text(
                '{"id": "a", "prompt": "b", "checks": {"expect_any": "word"}}'
            ),
            "texts.jsonl:1: the check 'expect_any' takes list, not 'word'",
        ),
    ],
)
def test_a_bad_suite_is_refused_with_its_line(
    spoil: Callable[[Path], Any], words: str, tmp_path: Path
) -> None:
    from stoker.evaluation.harness import load_tasks

    file = suite_of(tmp_path)
    assert list(load_tasks(read_suite(file))) == ["mine"]
    spoil(file)
    with pytest.raises(DataError) as caught:
        load_tasks(read_suite(file))
    assert words in str(caught.value)


def test_an_unknown_task_is_named_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("tasks:\n- mine\n- mime\n")
    with pytest.raises(DataError, match=r"yaml:3: tasks\[1\]: there is no task 'mime'; did you mean 'mine'"):
        read_suite(tmp_path / "own.yaml").insist_on_tasks(["heldout", "mine"])


def test_only_what_decides_over_a_score_is_in_the_digest(tmp_path: Path) -> None:
    file = suite_of(tmp_path)
    usual = digest_of(read_suite(file), "t", ["a", "b"])
    assert digest_of(read_suite(file), "t", ["b", "a"]) == usual
    assert digest_of(read_suite(file), "u", ["a", "b"]) != usual != digest_of(read_suite(file), "t", ["a"])
    file.write_text(file.read_text() + "decoding: {max_tokens: 9}\n")
    assert digest_of(read_suite(file), "t", ["a", "b"]) != usual
    file.write_text(file.read_text().replace("9", "64") + "# words\n")
    assert digest_of(read_suite(file), "t", ["a", "b"]) == usual
    (tmp_path / "mine" / "texts.jsonl").write_text('{"text": "b"}')
    assert digest_of(read_suite(file), "t", ["a", "b"]) != usual


def test_a_suite_or_a_checkpoint_that_changes_meanwhile_is_refused(
    made: tuple[Path, Model, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stoker.evaluation import harness

    suite, real = suite_of(tmp_path), harness.evaluate

    def changed(*arguments: Any) -> Any:
        (tmp_path / "mine" / "texts.jsonl").write_text('{"text": "b"}')
        return real(*arguments)

    monkeypatch.setattr(harness, "evaluate", changed)
    with pytest.raises(DataError, match="was changed while it ran"):
        evaluated(tmp_path, made[0], suite, tmp_path / "samples")
    with pytest.raises(DataError, match="is another one"):
        evaluated(tmp_path, made[0], suite, tmp_path / "samples", digest="x")
    with pytest.raises(DataError, match="pruned or quarantined"):
        evaluated(tmp_path, made[0], suite, tmp_path, checkpoint=str(tmp_path / "gone"))
    assert not (tmp_path / "samples").exists()


def test_samples_beyond_the_budget_are_missing(tmp_path: Path) -> None:
    rows = [{"metric": "a/b", "doc": str(n), "value": 0.5, "weight": 1} for n in range(4)]
    told = write_samples(tmp_path / "s" / "x.gz", rows, 100)
    assert (
        told["samples_missing"] == 2 and hash_file(tmp_path / "s" / "x.gz").sha256 == told["samples_sha256"]
    )
    assert read_samples(tmp_path / "s" / "x.gz") == rows[:2]
    assert write_samples(tmp_path / "s" / "x.gz", rows, 1000)["samples_missing"] == 0


def test_every_case_counts_in_the_gate_also_one_whose_id_is_another_ones() -> None:
    from stoker.evaluation.harness import _gate

    rows = [{"metric": f"{task}/passed", "id": "a", "value": passed} for task, passed in (("x", 0), ("y", 1))]
    assert _gate([*rows, {**rows[0], "metric": "x/facts"}]) == {"passed": 1, "of": 2, "failed": ["a"]}
    assert _gate([{"metric": "x/acc", "value": 1}]) is None


def test_only_what_is_a_mean_of_its_samples_has_a_verdict() -> None:
    metric = {"value": 9.0, "n": 8, "stderr": None, "higher_is_better": False}
    ours, theirs = (
        [{"metric": "a/b", "doc": str(n), "value": value, "weight": 1} for n in range(8)]
        for value in (-2.0, -1.0)
    )
    assert not worker._verdicts({"a/b": 0.0}, {"a/b": metric}, ours, theirs)  # likelihoods: ours is worse
    (found,) = worker._verdicts({"a/b": 0.0}, {"a/b": metric | {"stderr": 0.1}}, ours, theirs).values()
    assert found["verdict"] == "better"


def test_damaged_samples_are_found_or_read_as_they_were(tmp_path: Path) -> None:
    rows = [{"metric": "t/m", "doc": str(number), "value": number / 7, "weight": 1} for number in range(99)]
    file = tmp_path / write_samples(tmp_path / "x.gz", rows, 1 << 20)["samples"]
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with suppress(OSError, EOFError, ValueError):  # what the worker takes for samples that are gone
            assert read_samples(file) == rows
