"""What holds for every test: how long an example of a property test takes says nothing about the code."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Hypothesis fails an example that takes over 200 ms, and inputs that are slow to draw: on a busy machine
# both say who else wanted the processor.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
