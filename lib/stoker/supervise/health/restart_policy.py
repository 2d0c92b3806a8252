"""What follows the end of a launch: another one, after what checks, or giving up."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.supervise.health.exit_class import Exit, ExitClass

# A full disk and a trainer that asks for patience are waited out; they say nothing against the run.
PATIENT = frozenset({ExitClass.STORAGE, ExitClass.TRY_AGAIN})
GIVE_UP_CODES = {ExitClass.BAD_DATA: 65, ExitClass.WRONG_CONFIG: 78}
GAVE_UP = 70


@dataclass(frozen=True)
class Next:
    """Launch again after the back-off (`exit_code` None), or give up with that code.

    `fruitless` is the new count of launches in a row that got nowhere; `prove_data` asks for the proof of the
    shard sets that were being read.
    """

    exit_code: int | None
    fruitless: int
    prove_data: bool
    reason: str


def after_exit(exit_: Exit, *, progressed: bool, fruitless: int, most_fruitless: int) -> Next:
    """What follows; `progressed` = the launch sealed a checkpoint or went a step beyond all before it."""
    if exit_.kind is ExitClass.WRONG_CONFIG:
        return Next(
            GIVE_UP_CODES[exit_.kind],
            fruitless,
            False,
            f"the trainer refuses its configuration ({exit_.detail})",
        )
    if progressed:
        fruitless = 0
    elif exit_.kind not in PATIENT and exit_.kind is not ExitClass.STOPPED:
        fruitless += 1
    if fruitless >= most_fruitless:
        return Next(
            GIVE_UP_CODES.get(exit_.kind, GAVE_UP),
            fruitless,
            False,
            f"{fruitless} launches in a row brought neither a checkpoint nor a step beyond those before; "
            f"the last one: {exit_.kind} ({exit_.detail})",
        )
    prove_data = exit_.doubts_data or exit_.kind is ExitClass.BAD_DATA
    return Next(None, fruitless, prove_data, exit_.detail)
