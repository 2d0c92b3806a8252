"""The words of the train supervisor about checkpoints, their mirror, and what is restored from them."""

from __future__ import annotations

from stoker.kit.event_words.shared import QUARANTINE_DROPPED
from stoker.kit.event_words.word import Words, error, info, routine, warning

STATE = "Run `df -h` on the state directory; read `dmesg`."
WARM = "Run `mount`, `df -h` and `ls` on the warm disk; read `dmesg`."
WAS_LOST = "Ask what became of the file that was there before: was a disk replaced, or a directory removed?"
NO_LOSS = "Nothing: the run goes on where the checkpoint was made."

CHECKPOINTS: Words = {
    "checkpoint_failed": warning(
        "a checkpoint could not be sealed; the next save tries again",
        "Training goes on; a crash would cost the steps since the checkpoint before.",
        "Read the message above. " + STATE,
        "Make room or mend the state disk.",
        alert="StokerCheckpointOld",
    ),
    "checkpoint_fetched": warning(
        "a checkpoint came back from the mirror",
        "The run goes on from it.",
        WAS_LOST,
        NO_LOSS,
    ),
    "checkpoint_in_place": warning(
        "memory is short for a copy; training waits while a checkpoint is written",
        "Saves take longer; nothing is lost.",
        "Run `free -h`: who takes the memory?",
        "Give it memory, or save more seldom (`train.checkpoint.every`).",
    ),
    "checkpoint_mirrored": routine("a checkpoint was copied to the mirror and read back"),
    "checkpoint_proven": routine("a checkpoint is proven whole"),
    "checkpoint_pruned": routine("a superfluous checkpoint was removed"),
    "checkpoint_quarantined": warning(
        "a checkpoint is not whole and is set aside",
        "The run goes on from its copy on the mirror, or from the one before.",
        "Run `stoker quarantine list FILE`; read `dmesg` and the SMART values of the state disk.",
        "Replace what rots.",
        alert="StokerCheckpointQuarantined",
    ),
    "checkpoint_refused": warning(
        "a path of the trainer's own is not sealed as a checkpoint",
        "A crash would cost what it holds; training goes on.",
        "Read the message above; look at the path and at `train.external.checkpoints` in FILE.",
        "Correct what the message names; docs/trainers.md says what a checkpoint must be.",
        alert="StokerSaveRefused",
    ),
    "checkpoint_restored": warning(
        "a sealed checkpoint was put back to the path that the trainer reads",
        "What lay there differed from what was sealed.",
        WAS_LOST,
        NO_LOSS,
    ),
    "checkpoint_sealed": routine("a checkpoint that the trainer saved was copied and sealed"),
    "checkpoint_suspect": warning(
        "a checkpoint that is whole could not be loaded twice; the one before it is used",
        "The steps between the two are made again.",
        "Read the trainer's last words: `stoker events FILE --since 2h`.",
        "Nothing, unless the next one fails too: then mend what the trainer's words name.",
    ),
    "checkpoint_unreadable": warning(
        "a checkpoint cannot be read now",
        "The trainer is not started: not readable is not wrong. It is tried again.",
        "Is the file system mounted? Run `ls -l` on {path} of the run: may the daemon's user read it?",
        "Make room or mend the state disk.",
        alert="StokerCheckpointOld",
    ),
    "checkpoints_abandoned": warning(
        "a rollback moved later checkpoints aside",
        "They lie in abandoned/ of the run until the budget of `quarantine` removes them.",
        "Run `stoker plan FILE`: it lists the timelines.",
        "Nothing, if the rollback was meant.",
    ),
    "external_available": info("the directories of the trainer's own can be used again"),
    "external_set_aside": warning(
        "states that the trainer must not take for its newest were set aside",
        "They are kept beside the others; the trainer begins from the one that is proven.",
        "Read the message above: it says where they are.",
        NO_LOSS,
    ),
    "external_unavailable": warning(
        "the directories of the trainer's own cannot be used now",
        "Its checkpoints are not sealed meanwhile; a running trainer goes on.",
        "Run `mount`, and `ls` on the directories that the message names.",
        "Mend the mount or the permissions; it goes on by itself.",
    ),
    "heldout_failed": warning(
        "the held-out windows could not be copied",
        "The run does not begin without them; it is tried again.",
        "Read the reason above. " + STATE,
        "Make room, or mend the disk that the reason names.",
    ),
    "heldout_lost": error(
        "the held-out windows are damaged and cannot be restored",
        "Held-out losses cannot be compared any more; the run does not go on.",
        "Read the message above; look for runs/ and warm in a backup.",
        "Put the file back that the message names, or begin another `train.run`.",
    ),
    "heldout_restored": warning("the held-out windows were restored", "They are whole.", WAS_LOST, NO_LOSS),
    "hook_failed": warning(
        "the command of train.on_checkpoint failed or took too long",
        "It is not tried again for this checkpoint; training goes on.",
        "Read its output in `journalctl -u stoker-train-supervisor@NAME`.",
        "Mend the command; it runs again at the next checkpoint.",
    ),
    "launch_log_damaged": warning(
        "the log of launches was damaged",
        "`stoker runs` lacks some launches; training does not need them.",
        "Read `dmesg` and the SMART values of the state disk.",
        "Replace a disk that rots; else nothing.",
    ),
    "leftover_removed": info("an interrupted save was removed"),
    "mirror_awaited": warning(
        "the launch waits for the mirror's listing",
        "Warm may hold a newer checkpoint; without it steps would be made twice.",
        WARM,
        "Mount warm; if it is lost for good, set `train.checkpoint.mirror: false` and restart.",
    ),
    "mirror_copy_bad": warning(
        "a copy on the mirror is wrong",
        "It is removed, and made again while the checkpoint is here.",
        "Read `dmesg` and the SMART values of the warm disk.",
        "Replace a warm disk that rots.",
    ),
    "mirror_failed": warning(
        "the mirror cannot be used",
        "Training goes on; what waits is copied when warm is there again.",
        WARM,
        "Mount warm, make room. It goes on by itself.",
        alert="StokerMirrorBehind",
    ),
    "mirror_pruned": routine("superfluous copies on the mirror were removed"),
    "mirror_recovered": info("the mirror can be used again"),
    "mirror_source_differs": warning(
        "a checkpoint changed while it was copied",
        "It is proven again before anything uses it.",
        "Read `dmesg` and the SMART values of the state disk.",
        "Replace a disk that rots; nobody may write to `checkpoints/`.",
    ),
    "plan_restored": warning("the plan was restored from a checkpoint", "It is whole.", WAS_LOST, NO_LOSS),
    "quarantine_dropped": QUARANTINE_DROPPED,
    "run_logs_restored": warning(
        "plan and timelines came back from the mirror", "They are whole.", WAS_LOST, NO_LOSS
    ),
    "run_record_restored": warning(
        "the run's record was restored from a checkpoint", "The run goes on with it.", WAS_LOST, NO_LOSS
    ),
    "timelines_restored": warning("the timelines were restored", "They are whole.", WAS_LOST, NO_LOSS),
}
