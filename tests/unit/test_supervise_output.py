"""What a launch leaves in log/: its last lines as evidence, without secrets, and for how many launches."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.supervise.health.output import MOST_CHARACTERS, last_lines, prune, without_secrets


def test_the_last_lines_are_those_that_a_terminal_would_show(tmp_path: Path) -> None:
    file = tmp_path / "output.txt"
    file.write_bytes(
        b"one\ntwo\r\n\n\x1b[31mred\x1b[0m\n10 %\r20 %\r30 %\nbad \xff\xfe bytes\n" + b"y" * 2000 + b"end"
    )
    assert last_lines(file, 200) == [
        *("one", "two", " [31mred [0m", "30 %", "bad \ufffd\ufffd bytes"),
        "y" * (MOST_CHARACTERS - 3) + "end",
    ]
    assert last_lines(file, 2)[0] == "bad \ufffd\ufffd bytes"
    assert last_lines(tmp_path / "none", 5) == []


@given(st.binary(max_size=400))
def test_no_output_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, printed: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any-output.txt"
    file.write_bytes(printed)
    assert all(line.isprintable() for line in last_lines(file, 200))


def test_the_values_of_secrets_are_not_told() -> None:
    environ = {
        **{
            "HF_TOKEN": "hf_abcdefgh",
            "AWS_SECRET_ACCESS_KEY": "hf_abcdefgh12",
            "WANDB_API_KEY": "01234567",
        },
        **{"MONKEYS": "bananas-and-more", "KEY": "short", "PASSWORD": ""},
    }
    lines = ["login hf_abcdefgh12 01234567 hf_abcdefgh", "bananas-and-more, short"]
    assert without_secrets(lines, environ) == ["login *** *** ***", "bananas-and-more, short"]
    assert without_secrets(lines, {}) == lines


def test_the_files_of_the_last_launches_stay_also_where_the_clock_went_back(tmp_path: Path) -> None:
    launches = [f"202611{day}T120000Z-1a2b3c4d" for day in (20, 21, 22, 23, 24, 25, 19, 18)]
    for launch in launches:
        for name in (f"output-{launch}.txt", f"stacks-{launch}.txt", f"stacks-{launch}-0.txt"):
            (tmp_path / name).touch()
    (tmp_path / "metrics.jsonl").touch()
    prune(tmp_path, [one for one in launches for _ in range(2)])  # the log may name one twice
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"metrics.jsonl"} | {
        name
        for launch in launches[2:]
        for name in (f"output-{launch}.txt", f"stacks-{launch}.txt", f"stacks-{launch}-0.txt")
    }
