"""What differs by the trainer of a run; chosen once, where the pipeline is loaded.

Nothing else asks which one it is: a decision asks one of these members, and a launch has what follows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.config.schema import Pipeline
from stoker.config.schema_train import Train
from stoker.supervise import policy
from stoker.supervise.external.program import Program, external_program, planned_program
from stoker.supervise.health import exits
from stoker.supervise.run import gates, launch_record


@dataclass(frozen=True, kw_only=True)
class TrainerKind:
    """A kind of trainer.

    `follows_plan`: positions, tokens and rows are the plan's, which an audit recounts, and it seals its
    checkpoints; else a worker finds and seals its saves. `ends_run`: exit code 0 is the run's end. `horizon`
    is the run's last step before any is made; None: its trainer alone knows. `remedies` of a halted run are
    by class of end.
    """

    follows_plan: bool
    ends_run: bool
    gate_wants: Callable[[Pipeline], gates.RequiredData]
    horizon: Callable[[Train], int | None]
    launch_body: Callable[..., dict[str, Any]]
    program: Callable[..., Program]
    exit_meaning: exits.Meaning | None
    remedies: Mapping[exits.ExitClass, str]


# Also one with all of the protocol (train.external.protocol: full).
BUILT_IN = TrainerKind(
    follows_plan=True,
    ends_run=False,
    gate_wants=gates.gate_wants,
    horizon=lambda train: train.horizon,
    launch_body=launch_record.launch_body,
    program=planned_program,
    exit_meaning=None,
    remedies=policy.REMEDIES,
)
EXTERNAL = TrainerKind(
    follows_plan=False,
    ends_run=True,
    gate_wants=gates.wants_of_external,
    horizon=lambda train: train.steps,
    launch_body=launch_record.external_body,
    program=external_program,
    exit_meaning=exits.meaning_of_external,
    remedies=policy.REMEDIES_OF_EXTERNAL,
)


def kind_of(pipeline: Pipeline) -> TrainerKind:
    return BUILT_IN if pipeline.train.follows_plan else EXTERNAL
