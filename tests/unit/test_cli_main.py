"""The command's frame: help, exit codes, one sentence for each way to go wrong, quiet pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.cli import main as main_module
from stoker.cli.main import COMMANDS, FORMER, GOES, SECTIONS, LazyGroup, cli, exit_code
from stoker.config.load import deploy_dir
from stoker.store import errors
from stokerd import download_watchdog, stage_shard, train_supervisor
from support.config_files import MINIMAL, write_pipeline
from support.parquet import write_fineweb
from support.waiting import LONG_S

SMALL = "stage: {free_floor: 0}\nplan: {segment_tokens: 1M}\n"  # that fits on any disk
COMMAND = [sys.executable, "-c", "from stoker.cli.main import main; main()"]


def every_command() -> list[tuple[str, ...]]:
    """The words of every command there is."""
    found: list[tuple[str, ...]] = []
    context = click.Context(cli)
    for words in COMMANDS:
        found.append(tuple(words.split()))
        command = None if " " in words else cli.get_command(context, words)
        if isinstance(command, click.Group) and not isinstance(command, LazyGroup):
            found += [(words, inner) for inner in command.list_commands(context)]
    return found


@pytest.mark.parametrize(("former", "now"), FORMER.items())
def test_a_former_name_works_and_tells_the_new_one(
    former: str, now: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code([former, "--help"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"Usage: stoker {now} ")
    assert shown.err == f"stoker: `stoker {former}` is `stoker {now}` now; {GOES}\n"


def test_help_shows_every_command_in_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["--help"]) == 0
    text = capsys.readouterr().out
    assert [line[:-1] for line in text.splitlines() if line in {f"{title}:" for title in SECTIONS}] == [
        *SECTIONS
    ]
    assert {words for words in COMMANDS if " " not in words} == set(" ".join(SECTIONS.values()).split())
    assert not any(f"  {former} " in text for former in FORMER)


@pytest.mark.parametrize("words", [(), *every_command()], ids=" ".join)
def test_every_command_has_help_with_an_example(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Usage: stoker" in text
    assert "Example: " in text


@pytest.mark.parametrize(
    "words",
    [
        ("checkpoint", "generate", "nowhere", "--prompt", "\udcff"),
        ("rollback", "FILE", "1", "--reason", "\udcff"),
        ("data", "skip-set", "FILE", "key", "--reason", "\udcff"),
        ("verify", "parquet", "nowhere", "--text-column", "\udcff"),
        ("memory", "diagnose", "nowhere", "--text-column", "\udcff"),
        *(("watch", f"--{name}", "\udcff", "--", "true") for name in ("resume", "notify", "state", "save")),
        ("watch", "--", "true", "\udcff"),
    ],
    ids=" ".join,
)
def test_text_that_is_no_utf_8_is_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    file = str(write_pipeline(tmp_path, MINIMAL + SMALL))
    assert exit_code([file if word == "FILE" else word for word in words]) == 64
    assert "'\\udcff' is no UTF-8 text; write it in UTF-8" in capsys.readouterr().err


def test_help_imports_nothing_that_only_a_command_needs() -> None:
    program = (
        "import sys; from stoker.cli.main import exit_code; exit_code(['--help']);"
        "print(sorted({'torch', 'numpy', 'pyarrow', 'pydantic', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["confg"], "No such command 'confg'; did you mean 'config'?"),
        (["zzz"], "No such command 'zzz'; there are init, run, watch, status, "),
        (
            ["checkpoint", "generate", "/nowhere/step-000000005"],
            "step-000000005 does not exist; `ls /nowhere` shows",
        ),
        (["checkpoint", "generate", "x", "--top-p", "nan"], "nan is not a finite number"),
        (["checkpoint", "generate", "x", "--temperature", "inf"], "inf is not a finite number"),
        (["checkpoint", "generate", "x", "--temperature", "-1"], "-1.0 is not in the range x>=0"),
        (["status"], "Missing argument 'FILE'"),
        (["status", "x.yaml", "--jsn"], "No such option"),
        (["config", "chek", "x"], "No such command 'chek'"),
        (["verify", "shards"], "Missing argument 'PATHS...'"),
        (["verify", "shards", "/nowhere/at/all"], "stoker: /nowhere/at/all does not exist"),
        (["verify", "checkpoint", __file__], "is not a directory; a checkpoint is one"),
    ],
)
def test_usage_errors_exit_64(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(words) == 64
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (errors.LockHeld("held by x"), 75, "stoker: held by x\n"),
        (errors.StorageError("no space on /x; free some", 28), 74, "stoker: no space on /x; free some\n"),
        (errors.ConfigError("a.yaml:3: k: wrong"), 78, "a.yaml:3: k: wrong\n"),
        (errors.StokerError("broken"), 70, "stoker: broken\n"),
        (
            PermissionError(13, "Permission denied", "/x"),
            74,
            "stoker: /x: Permission denied; run this as its owner or as a member of its group",
        ),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
    ],
)
def test_errors_end_in_one_sentence_and_their_exit_code(
    error: BaseException,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(main_module, "cli", fail)
    assert exit_code([]) == code
    output = capsys.readouterr()
    assert output.err.startswith(told)
    assert "Traceback" not in output.err
    assert output.out == ""


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    path = write_pipeline(tmp_path)
    writer = subprocess.Popen(
        [*COMMAND, "config", "show", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    assert writer.stdout is not None
    writer.stdout.close()
    assert writer.stderr is not None
    assert writer.stderr.read() == b""
    assert writer.wait(LONG_S) == 0


def test_config_check_says_ok_with_what_it_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pipeline(tmp_path, MINIMAL + "  schedule: {warmup_steps: 1}\n" + SMALL)
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / "some.parquet").touch()
    assert exit_code(["config", "check", str(path)]) == 0
    assert capsys.readouterr().out == (
        f"ok: pipeline mine: folder {tmp_path}/parquet -> dataset prose version 1 -> run main: 10 steps, "
        f"2.6 M tokens; state in {tmp_path}/state\n"
    )


def test_config_check_notes_what_may_surprise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_pipeline(
        tmp_path, MINIMAL.replace("model: tiny", "model: tiny\n  checkpoint: {mirror: true}") + SMALL
    )
    assert exit_code(["config", "check", str(path)]) == 0
    notes = capsys.readouterr().out.splitlines()
    assert notes[0].startswith("warning: train.checkpoint.mirror: there is no warm")
    assert notes[1].startswith("warning: train.schedule.warmup_steps: 2000 is not below the run's 10 steps")
    source = f"warning: dataset.source.path: {tmp_path}/parquet"
    assert notes[2] == f"{source} cannot be read: No such file or directory; a run waits until that changes"
    (tmp_path / "parquet").mkdir()
    assert exit_code(["config", "check", str(path)]) == 0
    told = capsys.readouterr().out.splitlines()[2]
    assert told == f"{source} holds no file to read that matches *.parquet; a run waits until that changes"


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (
            "text_column: txet",
            78,
            "mine.yaml:6: dataset.text_column: none of 1 files has it: {file}: no single",
        ),
        (
            "text_column: token_count",
            78,
            "{file}: 'token_count' is int64, not text; name the column",
        ),
        ("filters: {at_least: {quality: 0.5}}", 0, "warning: dataset.filters: {file}: no single column"),
        ("filters: {languages: [en]}", 0, "ok: "),
    ],
)
def test_config_check_looks_up_the_columns_in_the_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, code: int, told: str
) -> None:
    file = write_fineweb(tmp_path / "parquet" / "a.parquet", rows=10)
    text = MINIMAL.replace("name: prose", f"name: prose\n  {more}") + "  schedule: {warmup_steps: 1}\n"
    path = write_pipeline(tmp_path, text + SMALL)
    assert exit_code(["config", "check", str(path)]) == code
    output = capsys.readouterr()
    assert told.format(file=file) in (output.err if code else output.out)


def test_a_text_column_that_only_some_files_lack_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "parquet" / "a.parquet"
    write_fineweb(tmp_path / "parquet" / "b.parquet", rows=10)
    pq.write_table(pa.table({"body": ["words"]}), odd)
    assert exit_code(["config", "check", str(write_pipeline(tmp_path, MINIMAL + SMALL))]) == 0
    assert f"warning: dataset.text_column: {odd}: no single column 'text'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (MINIMAL.replace("steps: 10", "stpes: 10"), "train.stpes: unknown key; did you mean 'steps'?"),
        (
            MINIMAL + "  start_when: {tokens: 900T}\n",
            "mine.yaml:10: train.start_when.tokens: 900000000000000 tokens take 1637.1 TiB",
        ),
        (
            MINIMAL + "stage: {free_floor: 900TiB}\n",
            "mine.yaml:7: train.start_when.tokens: 100000000 tokens take",
        ),
        (
            MINIMAL + SMALL + "metrics: {address: 192.0.2.1}\n",
            "metrics.address: metrics cannot be served on 192.0.2.1",
        ),
        (
            MINIMAL + SMALL + "tokenizer: {file: nowhere.json}\n",
            "nowhere.json is not there; correct the path",
        ),
    ],
)
def test_config_check_exits_78_for_a_bad_file(
    tmp_path: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["config", "check", str(write_pipeline(tmp_path, text))]) == 78
    output = capsys.readouterr()
    assert told in output.err
    assert output.out == ""


def test_config_show_prints_what_the_environment_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOKER_TRAIN__STEPS", "77")
    assert exit_code(["config", "show", str(write_pipeline(tmp_path))]) == 0
    assert "\n  steps: 77\n" in capsys.readouterr().out


def test_help_and_version_are_commands_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["help"]) == exit_code(["help", "quarantine", "list"]) == exit_code(["version"]) == 0
    said = capsys.readouterr().out
    for words in (
        "\n  replay  ",
        "Usage: stoker quarantine list [OPTIONS] FILE",
        f"\nstoker {version('stoker')}\n",
    ):
        assert words in said
    assert exit_code(["help", "qarantine"]) == 64
    assert "did you mean 'quarantine'?" in capsys.readouterr().err


@pytest.mark.parametrize("daemon", [download_watchdog, stage_shard, train_supervisor])
def test_each_daemon_says_what_it_does_and_which_version_it_is(
    daemon: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"stoker-{daemon.__name__.partition('.')[2].replace('_', '-')}"
    for option, words in (("--help", f"usage: {name} "), ("--version", f"{name} {version('stoker')}\n")):
        monkeypatch.setattr(sys, "argv", [name, option])
        assert daemon.main() == 0
        assert capsys.readouterr().out.startswith(words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shipped_completion_is_what_the_command_writes_and_completes_words(shell: str) -> None:
    def ask(**environ: str) -> str:
        return subprocess.run(
            COMMAND, env={**os.environ, **environ}, capture_output=True, text=True, check=True, timeout=LONG_S
        ).stdout

    shipped = (deploy_dir() / "completion" / f"stoker.{shell}").read_text()
    assert ask(_STOKER_COMPLETE=f"{shell}_source") == shipped
    if shell == "bash":
        said = ask(_STOKER_COMPLETE="bash_complete", COMP_WORDS="stoker quarantine rel", COMP_CWORD="2")
        assert said == "plain,release\n"
