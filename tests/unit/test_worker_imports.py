"""Workers begin by the hundred: none of them loads what the configuration is read with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIB = Path(__file__).resolve().parents[2] / "lib"
OF_A_FILE = "stoker.cli.doctor.worker"  # begins once, for a person, and examines the file itself


def test_a_worker_gets_its_task_by_words_and_loads_no_configuration() -> None:
    files = [path for path in LIB.glob("stoker/**/*.py") if "\n    run_worker(" in path.read_text()]
    names = sorted(".".join(path.relative_to(LIB).with_suffix("").parts) for path in files)
    names.remove(OF_A_FILE)
    assert len(names) > 15
    code = f"import sys, {', '.join(names)}; print(*{{'pydantic', 'yaml'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
