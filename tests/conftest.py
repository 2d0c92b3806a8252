"""What holds for every test: examples of property tests have no deadline, and Ctrl-C reaches every child."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# Hypothesis fails an example that takes over 200 ms, and inputs that are slow to draw: on a busy machine
# both say who else wanted the processor.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# A shell starts a background job with SIGINT ignored, and every child would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
