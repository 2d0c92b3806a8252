"""What holds for every test: no deadline for property tests, Ctrl-C for every child, long files first."""

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

# Files with a test that takes long, the longest first: what runs at the end, beside idle processes, is short.
LONG = (
    *("small_disk", "failure_policy", "download_kills", "download_daemon", "cold_start", "hold", "full_disk"),
    *("train_supervisor_kills", "dead_mounts", "data_kills", "warm_runs", "replay", "stoker_run"),
    *("supervisor_hangs", "supervisor_kills", "supervisor_faults"),
    *("units", "dashboards_live", "live_scenario", "alertmanager"),
    *("adoption", "corruption", "checkpoint_mirror", "data_daemons", "warm", "bad_input", "cli_looking"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of these files before the others."""
    place = {f"test_{name}.py": number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))
