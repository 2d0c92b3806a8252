"""The pipeline's configuration: read, checked, shown."""

import os

# Before pydantic is loaded: else it looks through every installed package for plugins, 30 ms of each start.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
