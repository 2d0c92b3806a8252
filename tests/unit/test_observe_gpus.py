"""The meaning of NVML's numbers, and what stays known of a card between samples."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.observe.gpus import Cards, by_owner, clock_events, slow_s, spill, xid_class

GIB = 1 << 30
MIB = 1 << 20
CARD = [(6 * GIB, 8 * GIB)]
TIGHT = [(8 * GIB - 400 * MIB, 8 * GIB)]
STEADY = [1.0] * 200


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 109])
def test_an_xid_that_a_program_brings_about_is_of_the_application(number: int) -> None:
    assert xid_class(number) == "application"


@pytest.mark.parametrize("number", [48, 63, 64, 74, 79, 94, 95, 119, 120, 149, 0, 100_000])
def test_any_other_xid_is_of_the_hardware(number: int) -> None:
    assert xid_class(number) == "hardware"


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0, set()),
        (0x1, {"idle"}),
        (0x2, {"applications_clocks"}),
        (0x4 | 0x8, {"sw_power_cap", "hw_slowdown"}),
        (0x10 | 0x20, {"sync_boost", "sw_thermal_slowdown"}),
        (0x40 | 0x80 | 0x100, {"hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clocks"}),
        (1 << 40 | 0x1, {"idle"}),
    ],
)
def test_a_mask_of_clock_events_names_its_reasons(mask: int, names: set[str]) -> None:
    events = clock_events(mask)
    assert {name for name, value in events.items() if value} == names
    assert len(events) == 9


@pytest.mark.parametrize(
    ("reserved", "cards", "times", "verdict"),
    [
        (None, CARD, STEADY, None),
        (8 * GIB, CARD, STEADY, None),
        (8 * GIB + 1, CARD, STEADY, "certain"),
        (8 * GIB + 1, [], STEADY, None),
        (8 * GIB + 1, [*CARD, (0, 24 * GIB)], STEADY, None),
        (9 * GIB, TIGHT, [*STEADY, *[3.0] * 20], "certain"),
        (None, TIGHT, [*STEADY, *[3.0] * 20], "suspected"),
        (None, TIGHT, [*STEADY, *[2.9] * 30], None),
        (None, TIGHT, [*STEADY, *[3.0] * 19], None),
        (None, TIGHT, [*STEADY, *[3.0] * 20, 1.0], None),
        (None, CARD, [*STEADY, *[3.0] * 20], None),
        (None, [(7 * GIB, 8 * GIB), *TIGHT], [*STEADY, *[30.0] * 2], "suspected"),
        (None, TIGHT, [], None),
    ],
)
def test_spill_is_certain_beyond_the_card_and_suspected_on_a_full_one_with_slow_steps(
    reserved: int | None, cards: list[tuple[int, int]], times: list[float], verdict: str | None
) -> None:
    assert spill(reserved, cards, times) == verdict


def test_only_the_slow_steps_at_the_end_count() -> None:
    assert slow_s([*STEADY, 9.0, 1.0, 4.0, 5.0]) == 9.0


def test_memory_is_the_trainers_or_anothers() -> None:
    processes = {"10": 5, "11": 7, "12": 9}
    assert by_owner(processes, {10, 12, 99}) == {"trainer": 14, "other": 7}
    assert by_owner({}, {10}) == {"trainer": 0, "other": 0}


def card(
    index: int, uuid: str = "", *, lost: bool = False, lacks: tuple[str, ...] = (), **figures: Any
) -> Any:
    about = {"index": index, "uuid": uuid or f"GPU-{index}", "name": "H100", "lacks": lacks}
    return {**about, "is_lost": lost, "figures": {} if lost else figures}


FIGURES = {"temperature_celsius": 60, "energy_joules_total": 10.0, "ecc_errors_total": {"corrected": 3}}


def test_a_lost_card_keeps_its_counters_and_its_place() -> None:
    cards = Cards()
    cards.sampled([card(0, **FIGURES), card(1, **FIGURES)], ())
    cards.sampled([card(0, **FIGURES), card(1, lost=True)], ())
    shown = cards.shown()
    assert (shown["expected"], shown["present"]) == (2, {"0": True, "1": False})
    assert shown["temperature_celsius"] == {"0": 60, "1": None}
    assert shown["energy_joules_total"] == {"0": 10.0, "1": 10.0}
    assert shown["ecc_errors_total"]["1"] == {"corrected": 3}


def test_what_others_hold_is_told_of_the_card_where_it_is_most() -> None:
    cards = Cards()
    assert cards.others_share() is None
    sizes = {"memory_total_bytes": 100}
    first = card(0, **sizes, processes={"1": 60, "2": 5})
    cards.sampled([first, card(1, **sizes, processes={"3": 20}), card(2, lost=True)], {1})
    assert cards.others_share() == 0.2


def test_a_card_keeps_its_label_where_the_driver_counts_anew() -> None:
    cards = Cards()
    cards.sampled([card(0, "A", temperature_celsius=1), card(1, "B", temperature_celsius=2)], ())
    cards.sampled([card(0, "B", temperature_celsius=3)], ())
    shown = cards.shown()
    assert (shown["expected"], shown["present"]) == (2, {"0": False, "1": True})
    assert shown["temperature_celsius"] == {"0": None, "1": 3}
    assert cards.erred({"index": 0, "uuid": "B"}, 79) == ("1", "hardware")
    assert cards.shown()["xid_total"]["1"] == {"application": 0, "hardware": 1}


def test_a_card_lost_from_the_start_is_expected_all_the_same() -> None:
    cards = Cards()
    cards.sampled([card(0, **FIGURES), {**card(1, lost=True), "uuid": "", "name": ""}], ())
    shown = cards.shown()
    assert (shown["expected"], shown["present"]) == (2, {"0": True, "1": False})
    assert list(shown["info"]) == ["0"]


def test_without_a_sampler_only_counters_are_known() -> None:
    cards = Cards()
    cards.sampled([card(0, **FIGURES, clock_event=0x4, processes={"7": 5})], {7})
    assert cards.shown()["process_memory_bytes"] == {"0": {"trainer": 5, "other": 0}}
    cards.silenced()
    shown = cards.shown()
    assert shown["temperature_celsius"] == {"0": None}
    assert set(shown["clock_event"]["0"].values()) == {None}
    assert shown["process_memory_bytes"] == {"0": {"trainer": None, "other": None}}
    assert (shown["energy_joules_total"], shown["present"]) == ({"0": 10.0}, {"0": True})


def test_the_clocks_of_the_cards_that_tell_them_and_what_lowers_them() -> None:
    cards = Cards()
    cards.sampled([card(0, sm_clock_hertz=1.2e9, clock_event=0x4 | 0x40), card(1, **FIGURES)], ())
    assert cards.clocks() == {
        "0": {"sm_clock_hertz": 1.2e9, "reasons": ["sw_power_cap", "hw_thermal_slowdown"]}
    }
    cards.silenced()
    assert cards.clocks() == {}


def test_a_counter_that_cannot_be_read_now_keeps_its_value_and_a_gauge_does_not() -> None:
    cards = Cards()
    cards.sampled([card(0, **FIGURES)], ())
    cards.sampled([card(0, temperature_celsius=None, energy_joules_total=None)], ())
    shown = cards.shown()
    assert (shown["temperature_celsius"], shown["energy_joules_total"]) == ({"0": None}, {"0": 10.0})


def test_a_card_without_events_of_xids_has_no_count_of_them() -> None:
    cards = Cards()
    cards.sampled([card(0, lacks=("xid_total",)), card(1)], ())
    assert cards.shown()["xid_total"] == {"1": {"application": 0, "hardware": 0}}
