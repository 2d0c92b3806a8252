"""Steps and losses read from the output of trainers that know nothing of Stoker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.kit.relay import HEAD_BYTES, TAIL_BYTES, KeptOutput
from stoker.supervise.external.patterns import Read, Reader, words
from stoker.supervise.external.rows import MOST_ROWS, ROWS_PER_S, Rows
from stoker.supervise.external.tail import MOST_BYTES, Tail, TooSlowError, cpu_limit
from stoker.supervise.health.trainer_protocol import parse

# Printed by transformers 5.23 (24 steps, an evaluation each 8), and by Lightning 2.6 with each of its bars.
TRANSFORMERS = (
    "\r  0%|          | 0/24 [00:00<?, ?it/s][transformers] `loss_type=None` was set in the config\n"
    "\r                                      \r"
    "{'loss': '3.038', 'grad_norm': '1.286', 'learning_rate': '4.375e-05', 'epoch': '0.25'}\n"
    "\r 17%|█▋        | 4/24 [00:00<00:00, 63.46it/s]\r                                              \r"
    "{'loss': '3.028', 'grad_norm': '1.121', 'learning_rate': '3.542e-05', 'epoch': '0.5'}\n"
    "\r 33%|███▎      | 8/24 [00:00<00:00, 103.30it/s]\n"
    "\r  0%|          | 0/8 [00:00<?, ?it/s]\x1b[A\r                                               \r\n"
    "\r                                     \r\x1b[A{'eval_loss': '3.031', 'eval_runtime': '0.013', "
    "'eval_samples_per_second': '4928', 'eval_steps_per_second': '616', 'epoch': '0.5'}\n"
    "\r 33%|███▎      | 8/24 [00:00<00:00, 87.75it/s]\n"
    "\r100%|██████████| 8/8 [00:00<00:00, 770.36it/s]\x1b[A\n"
    "\r                                              \x1b[A\r 46%|████▌     | 11/24 [00:00<00:00, 106.22it/s]"
    "\n\rWriting model shards:   0%|          | 0/1 [00:00<?, ?it/s]\x1b[A\r"
    "Writing model shards: 100%|██████████| 1/1 [00:00<00:00, 528.78it/s]\n"
)
LIGHTNING_TQDM = (
    "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 45.19it/s]\r      \r"
    "Epoch 0:   0%|          | 0/12 [00:00<?, ?it/s]\rEpoch 0:   8%|▊         | 1/12 [00:00<00:00, 34it/s]\r"
    "Epoch 0:   8%|▊         | 1/12 [00:00<00:00, 34.63it/s, train_loss=0.124]\r"
    "Epoch 0: 100%|██████████| 12/12 [00:00<00:00, 38.5it/s, train_loss=0.124]\n"
    "\rValidation DataLoader 0:  92%|█████████▏| 11/12 [00:00<00:00, 42.00it/s]\x1b[A\n"
    "\rEpoch 1:  17%|█▋        | 2/12 [00:00<00:00, 19.8it/s, v_num=0, train_loss=-0.311, val_loss=0.0699]\n"
)
LIGHTNING_RICH = (
    "Sanity Checking \x1b[35m━━━━━━\x1b[0m\x1b[35m╸\x1b[0m\x1b[90m━━━━━━\x1b[0m 1/2 \x1b[2m0:00:00 • -:--:--"
    "\x1b[0m \x1b[2;4m0.00it/s\x1b[0m \r\x1b[2KEpoch 0/1  \x1b[90m━━━━━━━━━━\x1b[0m 0/12 \x1b[2m0:00:00 • "
    "-:--:--\x1b[0m \x1b[2;4m0.00it/s\x1b[0m \r\x1b[2KEpoch 0/1  \x1b[35m━━━\x1b[0m\x1b[90m╺\x1b[0m\x1b[90m━"
    "\x1b[0m 3/12 \x1b[2m0:00:00 • 0:00:01\x1b[0m \x1b[2;4m41.48it/s\x1b[0m \x1b[3mtrain_loss: -0.403\n"
    "Validation \x1b[35m━\x1b[0m\x1b[90m╺\x1b[0m\x1b[90m━━━━━━━\x1b[0m 7/12  \x1b[2m0:00:00 • -:--:--\x1b[0m "
    "\x1b[2;4m0.00it/s \x1b[0m       \r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2KEpoch 1/1  \x1b[35m━━━━\x1b[0m"
    "\x1b[35m╸\x1b[0m\x1b[90m━━━━\x1b[0m 5/12 \x1b[2m0:00:00 • 0:00:01\x1b[0m \x1b[2;4m43.67it/s\x1b[0m "
    "\x1b[3mtrain_loss: -0.510\x1b[0m\n"
)
NANOGPT = """number of parameters: 10.65M
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2692, time 31044.83ms, mfu -100.00%
[default0]:iter 10: loss 3.1462, time 104.09ms, mfu 3.58%
step 250: train loss 1.9663, val loss 2.0694
saving checkpoint to out-shakespeare-char
"""
NANOCHAT = """Tokens : Params ratio: 20.00
Step 00000 | Validation bpb: 3.1924
step 00009/21400 (0.04%) | loss: 9.812345 | lrm: 1.00 | dt: 465.52ms | tok/sec: 1,126,235 | mfu: 47.7
step 00010/21400 (0.05%) | loss: 9.712345 | lrm: 1.00 | dt: 465.52ms | tok/sec: 1,126,235 | mfu: 47.7
step 00011 (0.05%) | loss: 9.6 | lrm: 1.00 | dt: 465.52ms | tok/sec: 1,126,236 | bf16_mfu: 47.7 | epoch: 1
"""
TORCHTITAN = (
    "[rank0]:[titan] 2026-11-20 12:00:00,000 - root - INFO - Training starts at step 1\n"
    "[rank0]:[titan] 2026-11-20 12:00:07,000 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.2721  "
    "\x1b[38;2;180;60;0mgrad_norm:  4.2410  \x1b[38;2;54;234;195mmemory: 47.5GiB(50.0%)  \x1b[34mtps: 1,234  "
    "\x1b[36mtflops: 71.31  \x1b[35mmfu: 7.21%\x1b[39m\n"
    "[titan] 2026-11-20 12:00:09,000 - root - INFO - \x1b[33mvalidate step: 10  \x1b[32mloss:  7.5000  "
    "\x1b[38;2;54;234;195mmemory: 47.52GiB(50.01%)  \x1b[34mtps: 9,876\x1b[39m\n"
)


def pieces(text: str) -> list[str]:
    return re.split(r"[\r\n]", text)


def read(text: str, pattern: str = "auto") -> list[tuple[int, dict[str, float]]]:
    return [(one.step, dict(one.values)) for one in Reader(pattern).read(pieces(text))]


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (
            "nanoGPT",
            NANOGPT,
            [(0, {"val_loss": 4.2823, "loss": 4.2692}), (10, {"loss": 3.1462}), (250, {"val_loss": 2.0694})],
        ),
        (
            "nanochat",
            NANOCHAT,
            [
                (0, {}),
                (9, {"loss": 9.812345, "tokens_per_s": 1126235.0}),
                (10, {"loss": 9.712345, "tokens_per_s": 1126235.0}),
                (11, {"loss": 9.6, "tokens_per_s": 1126236.0}),
            ],
        ),
        (
            "torchtitan",
            TORCHTITAN,
            [(1, {"loss": 12.2721, "grad_norm": 4.241, "tokens_per_s": 1234.0}), (10, {"val_loss": 7.5})],
        ),
        (
            "transformers",
            TRANSFORMERS,
            [
                (4, {"loss": 3.038, "grad_norm": 1.286, "lr": 4.375e-05}),
                (8, {"loss": 3.028, "grad_norm": 1.121, "lr": 3.542e-05, "val_loss": 3.031}),
                (11, {}),
            ],
        ),
        (
            "Lightning",
            LIGHTNING_TQDM,
            [(1, {"loss": 0.124}), (12, {"loss": 0.124}), (14, {"loss": -0.311, "val_loss": 0.0699})],
        ),
        ("Lightning", LIGHTNING_RICH, [(3, {"loss": -0.403}), (17, {"loss": -0.51})]),
    ],
)
def test_steps_and_values_of_known_trainers_are_read(
    kind: str, text: str, told: list[tuple[int, Any]]
) -> None:
    reader = Reader()
    reads = reader.read(pieces(text))
    assert [(one.step, dict(one.values)) for one in reads] == told
    assert reader.kind == kind == reads[-1].kind


def test_the_log_lines_of_transformers_4_are_read_too() -> None:
    logged = "{'loss': 2.3, 'grad_norm': 1.25, 'learning_rate': 4e-05, 'epoch': 0.1}"
    assert read(f"{logged}\n\r  2%|▏         | 12/500 [00:01<00:41, 11.7it/s]\n") == [
        (12, {"loss": 2.3, "grad_norm": 1.25, "lr": 4e-05})
    ]


def test_what_is_no_step_of_the_training_is_passed_over() -> None:
    for text in (
        "Map: 100%|██████████| 5000/5000 [00:01<00:00, 4211.61 examples/s]",
        "Map (num_proc=4):  40%|████      | 2000/5000 [00:01<00:00, 4211.61 examples/s]",
        "Loading checkpoint shards:  50%|█████     | 1/2 [00:00<00:00, 2.10it/s]",
        "Downloading (…)model.safetensors:  12%|█▏        | 10/80 [00:00<00:01, 45.1MB/s]",
        "Validation DataLoader 0:  92%|█████████▏| 11/12 [00:00<00:00, 42.00it/s]",
        " 12%|█▏        | 60000/500000 [00:01<00:10, 45123.1it/s]",  # a tokenizer's, for all that is known
        "Epoch 3: |          | 6/? [00:00<00:00, 20.71it/s, train_loss=-0.304]",
        "resuming from step 5000: checkpoint.pt",
        "step 5000: saved",
        "the loss at iter 10: loss 3.1",
        "{'train_runtime': '0.2372', 'train_loss': '3.03'}",
        "iter 99999999999999999999: loss 1.0",
    ):
        assert read(text) == [], text
    # A bar with the training's own length, but in another place: an evaluation.
    nested = TRANSFORMERS + "\r 88%|████████▊ | 21/24 [00:00<00:00, 770.36it/s]\x1b[A\n"
    assert read(nested)[-1][0] == 11
    # After a log line, no other bar takes over from the training's.
    assert [step for step, _ in read(TRANSFORMERS + "\r 12%|█  | 60000/500000 [00:01<00:10, 9.1it/s]\n")] == [
        4,
        8,
        11,
    ]


def test_a_step_that_falls_back_is_none_and_what_comes_later_of_a_step_counts() -> None:
    reader = Reader()
    assert [
        one.step for one in reader.read(["iter 5: loss 2.5", "iter 3: loss 2.5", "iter 6: loss 2.4"])
    ] == [5, 6]
    assert reader.read(["iter 4: loss 9.9"]) == []
    assert reader.read(["iter 6: loss nan"])[0].step == 6
    again = "Epoch 0:   8%|▊  | 1/12 [00:00<00:00, 34.9it/s, train_loss=9.9]\r" + LIGHTNING_TQDM
    assert read(again)[0] == (1, {"loss": 0.124})


def test_counts_that_change_are_a_sign_of_progress_without_a_step() -> None:
    reader = Reader()
    reader.read(["Map:  40%|████      | 2000/5000 [00:01<00:00, 4211.61 examples/s]"])
    reader.read(pieces("{'loss': 2.3, 'grad_norm': 1.2, 'learning_rate': 4e-05, 'epoch': 0.1}\n"))
    moved = reader.moved
    assert (reader.kind, moved) == ("", 2)
    reader.read(["Map:  40%|████      | 2000/5000 [00:09<00:00, 411.61 examples/s]", "still here", "step"])
    assert reader.moved == moved, "the same counts again"
    reader.read(["{'loss': 2.3, 'grad_norm': 1.2, 'learning_rate': 4e-05, 'epoch': 0.2}"])
    assert reader.moved == moved + 1


def test_an_operators_expression_names_step_and_values() -> None:
    text = (
        "batch 1,200 of 5000 loss=2.5\nbatch 1,300 of 5000 loss=inf\nbatch x of 5\nbatch 1200 of 9 loss=1\n"
    )
    assert read(text, r"batch (?P<step>[\d,]+) of \d+ loss=(?P<loss>\S+)") == [
        (1200, {"loss": 2.5}),
        (1300, {"loss": float("inf")}),
    ]
    assert [step for step, _ in read(text, r"batch (\S+) of")] == [1200, 1300]
    assert read("iter 5: loss 2.5", "batch (.*)") == []


def test_an_expression_that_would_take_for_ever_is_ended() -> None:
    reader = Reader(r"(a+)+(\d)$")
    with pytest.raises(TooSlowError), cpu_limit(0.1):
        reader.read(["a" * 60 + "b"])
    with cpu_limit(0.1):
        assert read("step 5", r"step (\d+)") == [(5, {})]


def test_the_words_are_those_of_the_protocol() -> None:
    said = parse(words(Read("nanoGPT", 12, {"loss": 2.5, "lr": 4e-05, "tokens_per_s": 10.0}), "L"), "L")
    assert said == {"phase": "train", "step": 12, "loss": 2.5, "lr": 4e-05, "tokens_per_s": 10.0}
    lost = parse(words(Read("nanoGPT", 12, {"loss": float("nan")}), "L"), "L")
    assert lost == {"phase": "train", "step": 12, "nonfinite": 1}


def rows_of(rows: Rows, *said: str, now: float = 0.0) -> list[dict[str, Any]]:
    return [dict(row) for row in rows.of([f"LAUNCH=L\n{one}".encode() for one in said], "L", now)]


def test_a_row_a_step_and_one_an_evaluation_are_made_of_words() -> None:
    rows = Rows(10)
    assert rows_of(
        rows,
        "STEP=10\nLOSS=9",  # resumed from there: its row is in the log
        "PHASE=train\nSTEP=11\nLOSS=2.5\nLR=0.1\nVAL_LOSS=3.0",
        "STEP=11\nLOSS=2.6",
        "STEP=12",
        "LOSS=2.4",  # of the step told last
        "RANK=1\nSTEP=13\nLOSS=2.2",
        "STEP=13\nLOSS=nan\nVAL_LOSS=3.0",  # shown on by Lightning
        "STEP=12\nLOSS=2.2",
        "STEP=14\nVAL_LOSS=2.9",
    ) == [
        {"step": 11, "loss": 2.5, "lr": 0.1},
        {"step": 11, "val_loss": 3.0},
        {"step": 12, "loss": 2.4},
        {"step": 13, "loss": None},
        {"step": 14, "val_loss": 2.9},
    ]
    assert rows_of(rows, "STEP=15\nLOSS=2") == [{"step": 15, "loss": 2.0}]


def test_thousands_of_steps_a_second_do_not_fill_the_disk() -> None:
    rows, told = Rows(), [f"STEP={step}\nLOSS=1" for step in range(5 * MOST_ROWS)]
    assert len(rows_of(rows, *told[: 2 * MOST_ROWS], now=0.0)) == MOST_ROWS
    assert len(rows_of(rows, *told[2 * MOST_ROWS :], now=3.0)) == 3 * ROWS_PER_S


@given(st.text(max_size=300) | st.sampled_from([NANOGPT, TRANSFORMERS, LIGHTNING_RICH]), st.text(max_size=20))
def test_no_text_breaks_the_reader(text: str, inside: str) -> None:
    half = len(text) // 2
    for step, _ in read(text[:half] + inside + text[half:]):
        assert step >= 0


def test_the_tail_gives_each_piece_once_and_only_when_it_has_ended(tmp_path: Path) -> None:
    file = tmp_path / "output.txt"
    tail = Tail(file)
    assert tail.poll() == []
    with file.open("wb", buffering=0) as out:
        out.write(b"one\rtw")
        assert (tail.poll(), tail.poll()) == (["one"], [])
        out.write("o\n\n\u00e9".encode()[:-1])
        assert tail.poll() == ["two"]
        out.write("\u00e9".encode()[-1:] + b"\xff\n")
        assert tail.poll() == ["\u00e9\ufffd"]
        out.write(b"x" * (MOST_BYTES // 2))
        assert tail.poll() == []
        assert len(tail._rest) == 4096
        out.write(b"x" * 10 + b"\nthe end")
        assert [len(piece) for piece in tail.poll()] == [4096], (
            "of a piece without end only its begin is kept"
        )
    assert (tail.poll(), tail.poll(is_last=True)) == ([], ["the end"])


def test_the_tail_passes_over_what_it_missed(tmp_path: Path) -> None:
    file = tmp_path / "output.txt"
    file.write_bytes(b"iter 1200: loss 1\n" * 10000)
    tail = Tail(file)
    assert set(tail.poll()) == {"iter 1200: loss 1"}, "begins with a whole piece"
    with file.open("ab") as out:
        out.write(b"iter 1")
    assert tail.poll() == []
    with file.open("ab") as out:
        out.write(b"3: loss 1\n" + b"iter 140: loss 1\n" * 10000)
    assert set(tail.poll()) == {"iter 140: loss 1"}


def test_the_tail_joins_no_pieces_of_a_file_that_was_moved_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "output.txt"
    file.write_bytes(b"a\niter 1")
    tail = Tail(file)
    assert tail.poll() == ["a"]
    file.write_bytes(b"0\niter 23: loss 1\n")
    assert tail.poll() == ["0", "iter 23: loss 1"]


def test_the_tail_follows_what_the_guard_keeps_of_a_long_output(tmp_path: Path) -> None:
    file, step, seen = tmp_path / "output.txt", 0, list[int]()
    kept, tail = KeptOutput(str(file)), Tail(file)
    while step * 100 < 2 * (HEAD_BYTES + 2 * TAIL_BYTES):
        for _ in range(300):  # 30 KB a look
            step += 1
            kept.write(b"iter %d: loss 1.0 %s\n" % (step, b"." * (100 - len(b"iter %d: loss 1.0 \n" % step))))
        kept.write(b"iter %d" % (step + 1))  # in the middle of a line
        seen += [int(found[1]) for piece in tail.poll() if (found := re.match(r"iter (\d+): loss", piece))]
        kept.write(b": loss\n")
        step += 1
    assert max(seen) <= step, "no step is made up of the pieces of two"
    assert set(range(1, step - 301)) - set(seen) == set(), "each line is read although the file is shortened"
