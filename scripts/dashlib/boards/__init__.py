"""The four dashboards."""

from __future__ import annotations

from dashlib.boards.data import DATA
from dashlib.boards.machine import MACHINE
from dashlib.boards.overview import OVERVIEW
from dashlib.boards.training import TRAINING

BOARDS = (OVERVIEW, DATA, TRAINING, MACHINE)
