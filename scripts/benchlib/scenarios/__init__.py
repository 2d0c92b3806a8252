"""The scenarios: every Scenario class in a module of this package is one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from benchlib.runner import Scenario


def find_scenarios() -> dict[str, type[Scenario]]:
    """All scenarios by name, in alphabetical order."""
    found = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for _, thing in inspect.getmembers(module, inspect.isclass):
            if issubclass(thing, Scenario) and thing.__module__ == module.__name__:
                found[thing.name] = thing
    return dict(sorted(found.items()))
