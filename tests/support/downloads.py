"""A pipeline whose source is a loopback hub or a list of URLs, and commands on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.loopback_hub import REPO, LoopbackHub
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.waiting import LONG_S

# What the machine's own settings must not change: proxies and the hub's client's environment.
ENVIRON = {"NO_PROXY": "*", "HF_TOKEN": "", "CREDENTIALS_DIRECTORY": "", "HF_HUB_OFFLINE": "0"}


def stoker(*arguments: object, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [*stoker_command(), *map(str, arguments)],
        env={**os.environ, **ENVIRON, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


def stoker_command() -> list[str]:
    """How the command is started, as its console script does it."""
    return [sys.executable, "-P", "-c", "from stoker.cli.main import main; main()"]


def put_parquet(hub: LoopbackHub, files: int, rows: int, *, below: str = f"dataset/{REPO}") -> list[Path]:
    """Store so many parquet files on the hub; where they lie."""
    names = [hub.root / below / f"data/{number:03d}.parquet" for number in range(files)]
    return [write_fineweb(name, rows, seed=number) for number, name in enumerate(names)]


def hub_pipeline(home: Path, hub: LoopbackHub, **changes: Any) -> DataPipeline:
    """A pipeline that fetches the hub's one repository."""
    source = {"kind": "hub", "repo": REPO, "endpoint": hub.endpoint}
    return make_pipeline(home, **{"dataset__source": source, **changes})


def urls_pipeline(home: Path, lines: list[str], **changes: Any) -> DataPipeline:
    """A pipeline that fetches what a list of URLs names."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "urls.txt").write_text("\n".join(lines) + "\n")
    source = {"kind": "urls", "urls_file": str(home / "urls.txt")}
    return make_pipeline(home, **{"dataset__source": source, **changes})
