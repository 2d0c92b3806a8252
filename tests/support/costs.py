"""What a run of the tests costs: CPU seconds, seconds and starts of Python by directory and by file.

`scripts/test --costs` loads this plugin. While it runs, a line in the site packages has each Python say what
it is; for which test it was started stands in a variable of pytest.
"""

from __future__ import annotations

import os
import resource
import shutil
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = "STOKER_TEST_COSTS"  # where it is written
# How the words begin that start one: its script, or Python as the tests and `stoker run` call it.
DAEMONS = (
    *("stoker-download-watchdog", "stoker-stage-shard", "stoker-train-supervisor"),
    *("stokerd.", "import sys; from stokerd."),
)
CHECK = "stokerd.common.check_reload"  # a worker of a daemon
KINDS = ("daemon", "worker", "launcher", "command", "python")
COLUMNS = ("tests", "cpu_s", "wall_s", *KINDS)
LINE = f'import os; "{HOME}" in os.environ and exec(open(os.environ["{HOME}"] + "/started.py").read())\n'
STARTED = f"""
import os, sys
def tell():
    argv, kind = sys.orig_argv[1:], "python"
    words = [os.path.basename(word) for word in argv[:4]]
    if "stoker.kit.exec" in words:
        is_ours = any(word.startswith("stoker.") for word in argv[argv.index("--") :])
        kind = "worker" if is_ours else "launcher"
    elif "{CHECK}" in words:
        kind = "worker"
    elif any(word.startswith({DAEMONS}) for word in words):
        kind = "daemon"
    elif "stoker" in words or "stoker.cli.main" in words:
        kind = "command"
    test = os.environ.get("PYTEST_CURRENT_TEST", "none").partition("::")[0]
    line = f"{{kind}}\\t{{test}}\\t{{' '.join(argv)[:200]!r}}\\n"
    to = os.open(os.environ["{HOME}"] + "/starts", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(to, line.encode())
    os.close(to)
if not hasattr(sys, "_stoker_told"):  # lib and lib64 are one directory
    sys._stoker_told = True
    tell()
"""


def _line_file() -> Path:
    return Path(sysconfig.get_path("purelib")) / "stoker_test_costs.pth"


def _is_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


def pytest_configure() -> None:
    """Have each Python started from here on say so."""
    if not _is_worker():
        home = Path(tempfile.mkdtemp(prefix="costs-"))
        home.chmod(0o777)  # some tests are another user
        (home / "started.py").write_text(STARTED)
        for name in ("costs", "starts"):
            (home / name).touch()
            (home / name).chmod(0o666)
        os.environ[HOME] = str(home)
        _line_file().write_text(LINE)


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write what this test cost, with what it was the first to make for others."""
    cpu_s, begin = _cpu_s(), time.monotonic()
    yield
    line = f"{item.nodeid.partition('::')[0]}\t{_cpu_s() - cpu_s}\t{time.monotonic() - begin}\n"
    with (Path(os.environ[HOME]) / "costs").open("a") as costs:
        costs.write(line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the tables."""
    if not _is_worker():
        for line in tables(Path(os.environ[HOME])):
            terminalreporter.write_line(line)


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    if not _is_worker():
        _line_file().unlink(missing_ok=True)
        shutil.rmtree(os.environ.pop(HOME), ignore_errors=True)


def tables(home: Path) -> Iterator[str]:
    """The lines of two tables, by directory and by file, the dearest first."""
    files: dict[str, Counter[str]] = defaultdict(Counter)
    for line in (home / "costs").read_text().splitlines():
        file, cpu_s, wall_s = line.split("\t")
        files[file].update({"tests": 1, "cpu_s": float(cpu_s), "wall_s": float(wall_s)})  # type: ignore[dict-item]
    for line in (home / "starts").read_text(errors="replace").splitlines():
        kind, file, _ = line.split("\t", 2)
        files[file][kind] += 1
    directories: dict[str, Counter[str]] = defaultdict(Counter)
    for file, row in files.items():
        directories[str(Path(file).parent)].update(row)
        directories["all"].update(row)
    for table in (directories, files):
        yield "".join(f"{column:>9}" for column in COLUMNS)
        for name, row in sorted(table.items(), key=lambda each: -each[1]["cpu_s"]):
            cells = (
                f"{row[column]:9.1f}" if column.endswith("_s") else f"{row[column]:9}" for column in COLUMNS
            )
            yield "".join(cells) + f" {name}"
        yield ""
