"""What is known of the GPUs: the meaning of NVML's numbers, and the figures of each card between samples.

The samples come from `stoker.observe.gpu_worker`. A card is named by NVML's index for it when it was first
seen; after another card is gone from the bus, NVML counts anew and the name stays, by the card's UUID.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

# Xids that a program brings about by what it does (NVIDIA's catalogue of Xid errors); the others tell of the
# card, its memory, its links or its driver.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
XID_CLASSES = ("application", "hardware")
CLOCK_EVENTS = (  # the bits of nvmlClocksEventReasons, from the lowest
    *("idle", "applications_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"),
    *("hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clocks"),
)
COUNTERS = frozenset({"energy_joules_total", "ecc_errors_total"})  # they keep their last value

Certainty = Literal["certain", "suspected"]
CERTAINTIES: tuple[Certainty, ...] = ("certain", "suspected")
TIGHT_BYTES = 500 << 20
SLOW_TIMES, SLOW_S = 3.0, 60.0


def xid_class(number: int) -> str:
    return "application" if number in APPLICATION_XIDS else "hardware"


def clock_events(mask: int) -> dict[str, int]:
    """Returns 1 for each reason that a bit mask of NVML names, else 0."""
    return {name: mask >> bit & 1 for bit, name in enumerate(CLOCK_EVENTS)}


def by_owner(processes: Mapping[str, int], trainer: Collection[int]) -> dict[str, int]:
    """Returns the bytes on a card of the trainer's processes, and of all others; `processes` is by pid."""
    own = sum(size for pid, size in processes.items() if int(pid) in trainer)
    return {"trainer": own, "other": sum(processes.values()) - own}


def spill(
    reserved_bytes: int | None, cards: Iterable[tuple[int, int]], step_times: Sequence[float]
) -> Certainty | None:
    """Judges whether a trainer on WSL2 works in the machine's memory instead of the card's.

    Windows' driver grants more than the card has, and training goes on at a fraction of its speed. `cards`
    are the bytes used and in total of each; `step_times` are the seconds of the trainer's last steps.
    """
    used_of = list(cards)
    if reserved_bytes is not None and used_of and reserved_bytes > max(total for _, total in used_of):
        return "certain"
    is_tight = any(total - used < TIGHT_BYTES for used, total in used_of)
    return "suspected" if is_tight and slow_s(step_times) >= SLOW_S else None


def slow_s(step_times: Sequence[float]) -> float:
    """Returns for how many seconds each step has taken at least three times the median of all."""
    if not step_times:
        return 0.0
    limit_s = SLOW_TIMES * sorted(step_times)[len(step_times) // 2]
    return sum(takewhile(lambda seconds: seconds >= limit_s, reversed(step_times)))


@dataclass
class Card:
    """A card by its last sample; a value of None could not be read, a missing one the card does not have."""

    uuid: str = ""
    name: str = ""
    is_present: bool = False
    figures: dict[str, Any] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    xids: dict[str, int] = field(default_factory=lambda: dict.fromkeys(XID_CLASSES, 0))

    def silenced(self) -> None:
        """Forgets the figures that hold only now."""
        self.figures |= {name: _blank(old) for name, old in self.figures.items() if name not in COUNTERS}


class Cards:
    """Every card seen since the daemon's start, by its label."""

    def __init__(self) -> None:
        self.expected: int | None = None  # the number of cards that NVML showed first
        self.cards: dict[str, Card] = {}

    def sampled(self, sample: Sequence[Mapping[str, Any]], trainer: Collection[int]) -> None:
        """Takes in a sample of all cards; `trainer` are the pids of the trainer's processes."""
        if self.expected is None:
            self.expected = len(sample)
        self.vanished()
        for seen in sample:
            card = self.cards.setdefault(self.label(seen), Card())
            card.uuid, card.name = seen["uuid"] or card.uuid, seen["name"] or card.name
            if seen["is_lost"]:
                continue
            figures, card.lacks, card.is_present = dict(seen["figures"]), tuple(seen["lacks"]), True
            if (processes := figures.pop("processes", None)) is not None:
                figures["process_memory_bytes"] = by_owner(processes, trainer)
            if (mask := figures.pop("clock_event", None)) is not None:
                figures["clock_event"] = clock_events(mask)
            card.figures |= {
                name: value for name, value in figures.items() if value is not None or name not in COUNTERS
            }

    def others_share(self) -> float | None:
        """Returns the share of a card's memory that processes other than the trainer's hold: the greatest."""
        shares = list[float]()
        for card in self.cards.values():
            held = (card.figures.get("process_memory_bytes") or {}).get("other")
            total = card.figures.get("memory_total_bytes")
            shares += [held / total] if held is not None and total else []
        return max(shares, default=None)

    def clocks(self) -> dict[str, dict[str, Any]]:
        """Returns the clock of each card that tells it, in hertz, and what lowers it."""
        return {
            label: {"sm_clock_hertz": clock, "reasons": [name for name, is_on in _events(card) if is_on]}
            for label, card in self.cards.items()
            if (clock := card.figures.get("sm_clock_hertz")) is not None
        }

    def label(self, seen: Mapping[str, Any]) -> str:
        """Returns the label of a card that the sampler names by index and UUID."""
        known = (label for label, card in self.cards.items() if card.uuid and card.uuid == seen["uuid"])
        return next(known, str(seen["index"]))

    def erred(self, seen: Mapping[str, Any], number: int) -> tuple[str, str]:
        """Counts an Xid of a card; returns the card's label and the Xid's class."""
        label, kind = self.label(seen), xid_class(number)
        self.cards.setdefault(label, Card()).xids[kind] += 1
        return label, kind

    def silenced(self) -> None:
        """Takes in that there is no sampler now."""
        for card in self.cards.values():
            card.silenced()

    def vanished(self) -> None:
        """Takes in that no card is there."""
        for card in self.cards.values():
            card.is_present = False
            card.silenced()

    def shown(self) -> dict[str, Any]:
        """Returns the figures for status and metrics, each by card."""
        shown: dict[str, Any] = {"expected": self.expected, "present": {}, "info": {}, "xid_total": {}}
        for label, card in self.cards.items():
            shown["present"][label] = card.is_present
            if card.uuid:
                shown["info"][label] = {card.uuid: {card.name: 1}}
            if "xid_total" not in card.lacks:
                shown["xid_total"][label] = dict(card.xids)
            for name, value in card.figures.items():
                shown.setdefault(name, {})[label] = value
        return shown


def _events(card: Card) -> Iterable[tuple[str, Any]]:
    return (card.figures.get("clock_event") or {}).items()


def _blank(value: Any) -> Any:
    return dict.fromkeys(value) if isinstance(value, Mapping) else None
