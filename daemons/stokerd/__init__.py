"""The three daemons."""

import gc

gc.disable()  # until daemon_main: imports leave no garbage, and to look for it takes a twentieth of a start
