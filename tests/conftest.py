"""What holds for every test: no deadline for property tests, Ctrl-C for every child, dear files first."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

gc.disable()  # until all is collected: imports leave no garbage

# Hypothesis fails an example that takes over 200 ms, and inputs that are slow to draw: on a busy machine
# both say who else wanted the processor.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# The hub's client reads this when a first test imports it, before a command of another test can set it.
os.environ["HF_HUB_DISABLE_XET"] = "1"

# A shell starts a background job with SIGINT ignored, and every child would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The files that take longest, the longest first.
LONG = (
    *("external_kills", "download_daemon", "acceptance", "trainer_compile", "data_daemons", "rehearse"),
    *("failure_policy", "stoker_run", "dead_mounts", "train_supervisor_kills", "train_supervisor"),
    *("shard_build", "download_changes", "checkpoint_mirror", "units", "run_changes"),
    *("external_checkpoints", "train_supervisor_reload", "install", "warm", "source_changes", "staging"),
    *("small_disk", "launch_policy", "supervisor_hangs", "memory_record", "dashboards_live"),
    *("sealer_kills", "kit_daemon", "external_trainer", "drop_ins", "trainer_memory", "hold", "warm_runs"),
    *("trainer_process", "cli_download", "cli_watch", "adoption", "download_kills", "bad_input"),
    *("reload_command", "external_output", "fetch_unsummed", "export_import", "quarantine", "rollback"),
    *("fetch_worker", "full_disk", "manual", "data_kills", "alerts", "landing", "kit_worker", "replay"),
    *("cold_start", "corruption", "checkpoint_audit", "worker_pool", "hub_worker", "data_limit", "gpus"),
)


@pytest.fixture(autouse=True)
def online() -> Iterator[None]:
    """What a command sets for its own process is not left to other tests."""
    before = os.environ.get("HF_HUB_OFFLINE")
    yield
    os.environ.pop("HF_HUB_OFFLINE", None)
    if before is not None:
        os.environ["HF_HUB_OFFLINE"] = before


@pytest.hookimpl(trylast=True)  # what is not selected has gone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the dear files: each goes to one process whole, and the cheap ones fill the end."""
    place = {f"test_{name}.py": number for number, name in enumerate(LONG)}
    gc.freeze()
    gc.enable()
    items.sort(key=lambda item: ("unit" in item.path.parts, place.get(item.path.name, len(LONG))))
