"""What holds for every test: no deadline for property tests, Ctrl-C for every child, dear files first."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

# Hypothesis fails an example that takes over 200 ms, and inputs that are slow to draw: on a busy machine
# both say who else wanted the processor.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# A shell starts a background job with SIGINT ignored, and every child would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The dearest files, the dearest first.
LONG = (
    *(
        "external_kills",
        "acceptance",
        "install",
        "download_daemon",
        "units",
        "sealer_kills",
        "failure_policy",
    ),
    *("small_disk", "train_supervisor_kills", "dead_mounts", "stoker_run", "download_kills", "data_kills"),
    *("dashboards_live", "train_supervisor_reload", "external_resumes", "trainer_compile", "drop_ins"),
    *("full_disk", "hold", "train_supervisor", "data_daemons", "rollback", "user_units", "warm_runs"),
    *("replay", "launch_policy", "checkpoint_mirror", "external_trainer", "external_checkpoints"),
    *("external_output", "alertmanager", "adoption", "cold_start", "supervisor_hangs", "supervisor_faults"),
    *("supervisor_kills", "live_scenario", "corruption", "warm", "bad_input", "cli_looking", "container"),
)


@pytest.hookimpl(trylast=True)  # what is not selected has gone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the dear files: each goes to one process whole, and the cheap ones fill the end."""
    place = {f"test_{name}.py": number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: ("unit" in item.path.parts, place.get(item.path.name, len(LONG))))
