"""A case of an alert: what makes it fire, and what nearly does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DAEMONS = {"download": "download_watchdog", "shard": "stage_shard", "train": "train_supervisor"}
OWN = "job instance pipeline daemon"  # the labels of a daemon's series
Series = Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """Alert `name` fires `at_min` minutes after 0 with the summary `says`.

    A series is "<daemon>:<metric>"; one without a daemon is written out. Each change of `but` to the series
    keeps it silent. `by` are the alert's labels that are of the first series' daemon, `more` its others.
    `severities` names the rules that fire, where an alert has several. `every_min` is between two samples.
    """

    name: str
    at_min: int
    says: str
    series: Series
    but: tuple[Series, ...]
    by: str = "pipeline daemon"
    more: Mapping[str, str] = field(default_factory=dict)
    severities: tuple[str, ...] = ()
    every_min: int = 1
