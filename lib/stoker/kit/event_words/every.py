"""The words of every daemon, and those that are in the log alone."""

from __future__ import annotations

from stoker.kit.event_words.word import Word, Words, error, info, routine, warning

STATE_DISK = "Run `df -h` and `df -i` on the state directory; read `dmesg`: is it mounted read-only?"

EVERY: Words = {
    "daemon_started": info("the daemon began its work"),
    "daemon_stopped": info("the daemon ended in order"),
    "daemon_failed": error(
        "the daemon ended with an error",
        "The message says why. systemd starts it again, unless the exit code is 78: a wrong configuration.",
        "Read the message above; `stoker config check FILE` names key and line of what is wrong there.",
        "Do what the sentence at its end says.",
        alert="StokerDaemonRestarting",
    ),
    "daemon_crash_loop": error(
        "the daemon ended uncleanly again and again",
        "Three times within 15 minutes it was killed or failed. systemd goes on starting it.",
        "Run `journalctl -u 'stoker-*@NAME.service' -b -p warning`, and `dmesg`: what came before each end?",
        "Do what the sentence at its end says; after a kill by the kernel, give it memory. "
        "Report a traceback, with `stoker version`.",
        alert="StokerDaemonRestarting",
    ),
    "record_damaged": error(
        "a record on disk was damaged and is set aside",
        "The daemon makes it again from what else it knows; the damaged file is kept at {moved_to}.",
        "Read `dmesg` and the SMART values of the state disk: what changed once by itself does so again.",
        "Replace a disk that rots; run `stoker audit FILE --deep`.",
    ),
    "reload_refused": warning(
        "a reload was refused; the daemon goes on with the file and the code that it has",
        "Nothing has changed: the old settings hold.",
        "Read the reason above; it names the key and its line.",
        "Put the file or the code right, then `systemctl reload 'stoker-*@NAME.service'`.",
    ),
    "reloaded": info("the daemon began again in place, with the file and the code of now"),
    "request_stuck": warning(
        "a request can be neither read nor moved",
        "What somebody asked for by a command is not done; the daemon goes on.",
        "Run `ls -l` on {path}: who owns it?",
        "Remove by hand what another user owns there.",
        alert="StokerRequestsUnanswered",
    ),
    "state_disk_full": error(
        "the state disk is full; the reserve is freed",
        "What is under way can be finished; nothing new begins until there is room.",
        STATE_DISK,
        "Make room on the state disk; the daemon goes on by itself.",
    ),
    "state_disk_has_room": info("the state disk has room again"),
    "state_unwritable": error(
        "the state directory cannot be written",
        "The daemon waits and loses nothing.",
        STATE_DISK,
        "Make room, or mend and remount the disk.",
        alert="StokerStateUnwritable",
    ),
    "state_writable": info("the state directory can be written again"),
    "unit_differs": warning(
        "the unit's drop-in is not what the file asks for",
        "systemd keeps to the drop-in {path}: its directories, its time for a stop.",
        "Run `stoker units FILE --check`: it shows the lines that differ.",
        "Run `stoker units FILE --write` and `systemctl daemon-reload`, then restart the unit.",
    ),
    "worker_not_started": error(
        "a worker could not be started",
        "The system has no room for another process, its memory or its open files. It is tried again.",
        "Run `systemctl status 'stoker-*@NAME.service'`: is it at TasksMax= or MemoryMax=? Run `free -h`.",
        "Raise the limit, or end what takes the room.",
    ),
    "worker_stuck": error(
        "the kernel does not let a killed worker go",
        "A file system does not answer. The worker's file stays reserved; everything else goes on.",
        "Run `cat /proc/{pid}/stack`; read `dmesg`; look at the mount.",
        "Mend the mount.",
        alert="StokerWorkersStuck",
    ),
    "worker_came_back": info("a stuck worker ended after all"),
}
LOGGED: Words = {
    "unit_failed": Word(
        "critical",
        "a unit of Stoker failed, and systemd does not start it again",
        "It ended with {exit_code}. What it said last: {last_error}.",
        "Run `systemctl status {unit}`.",
        "Remedy: {remedy}.",
    ),
    "daemon_ready": info("the daemon is ready"),
    "stop_asked": info("a signal asked the daemon to end"),
    "reload_asked": info("a signal asked the daemon to begin again in place"),
    "leftovers_swept": info("half-written records of ended processes were removed"),
    "interrupted": info("the daemon was stopped before its work was done"),
    "drained": info("all the work there was is done"),
    "progress": routine("how far the work is"),
    "files_settle": routine("files are still written to; they count once they rest"),
    "tokenizer_training": info("the tokenizer is trained"),
    "download_retry": routine("a transfer broke off and is tried again"),
    "fetcher_stacks": warning(
        "the stacks of the fetch worker that hung or died",
        "They say where it stood.",
        "Read `dmesg`: does a disk hang?",
        "Mend the disk or the mount.",
    ),
    "samples_unwritable": warning(
        "the samples of memory and load cannot be written",
        "Work goes on without them.",
        STATE_DISK,
        "Make room, or mend the disk.",
    ),
    "status_unwritable": warning(
        "the status cannot be written",
        "Work goes on; `stoker status` shows what was last written.",
        "Run `df -h` and `ls -ld` on the directory of the status: /run/stoker/NAME under systemd.",
        "Make room there, or give it back to the daemon's user.",
    ),
    "events_unwritable": error(
        "events cannot be written to the state directory",
        "Until they can, they are in the journal alone.",
        STATE_DISK,
        "Make room, or mend and remount the disk.",
    ),
    "events_writable": info("events are kept again"),
    "events_damaged": warning(
        "the log of events was damaged",
        "The daemon goes on behind the damage; the events before it may be lacking in `stoker events`.",
        "Read `dmesg` and the SMART values of the state disk, unless the power had failed.",
        "Replace a disk that rots; else nothing.",
    ),
}
