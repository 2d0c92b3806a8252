"""The words of the download watchdog."""

from __future__ import annotations

from stoker.kit.event_words.shared import DISK_FULL
from stoker.kit.event_words.word import Words, error, info, routine, warning

SOURCE = "Run `ls` on the folder and `mount`; for a hub `stoker download FILE --dry-run` asks it from here."
HANGS = "Read `dmesg`: does a disk hang? Run `ls` on the source."

DOWNLOAD: Words = {
    "disk_full": DISK_FULL,
    "download_anew": warning(
        "a fetched file starts over",
        "What was fetched of it cannot be continued, by the reason above. The other files go on.",
        "Read the reason above.",
        "Nothing, unless it comes back for every file.",
    ),
    "download_failed": warning(
        "an attempt to fetch a file failed",
        "It is tried again by itself; the other files go on.",
        "Read the reason above: is it the network, the server or the token?",
        "Nothing, unless it comes back for every file.",
    ),
    "download_given_up": warning(
        "a file could not be fetched; it is tried again later",
        "The dataset goes on without it. The next try is at most six hours away.",
        "Read the reason above; run `stoker quarantine list FILE`.",
        "A file that is wrong at the source: `exclude` it, or have it mended there.",
        alert="StokerDownloadGivenUp",
    ),
    "download_mismatch": warning(
        "a fetched file's content was wrong",
        "It is fetched again from its beginning.",
        "See whether it comes back: then the file is wrong at its source, or a proxy changes it.",
        "A file that is wrong at the source: `exclude` it, or have it mended there.",
        alert="StokerDownloadGivenUp",
    ),
    "download_resumed": info("fetching continues after a pause"),
    "downloads_go_on": info("the server answers again"),
    "downloads_wait": warning(
        "every file waits for its next try",
        "The server is away, or asked for a pause. Nothing is lost.",
        "Read the reason above; run `stoker download FILE --dry-run`.",
        "Mend network, proxy or token.",
        alert="StokerDownloadStalled",
    ),
    "fetch_asked": routine("an operator or the stage-shard loop asked for a file again"),
    "fetcher_died": warning(
        "the fetch worker died",
        "Another one goes on from what is on disk.",
        "Read the reason above; read `dmesg` for the OOM killer.",
        "Nothing, unless it comes back: then give it memory, or report its last words.",
    ),
    "fetcher_stalled": warning(
        "the fetch worker hung and was ended",
        "Another one goes on from what is on disk.",
        "Read `dmesg`: mostly the disk hangs. Its stacks are above (`fetcher_stacks`).",
        "Mend the disk or the mount.",
    ),
    "file_released": routine("a fetched file was removed after its shard set was safe"),
    "file_reverified": routine("a file is hashed again, and as it was"),
    "file_unproven": warning(
        "a file came without a length or a sum to hold it against",
        "It is used as it came.",
        "Compare {path} with its source.",
        "List its sha256 beside its URL to have it proven.",
    ),
    "file_verified": routine("a file is here and hashed; a fetched one is what was listed"),
    "files_list_unknown": warning(
        "the list names files that the source lacks",
        "The other files are used.",
        "Compare the list with the source: `stoker download FILE --dry-run`.",
        "Correct the list.",
    ),
    "foreign_files": routine("another client's unfinished files lie in the source and are left alone"),
    "hash_failed": warning(
        "a file could not be hashed",
        "It is tried again; the other files go on.",
        HANGS,
        "Mend the disk, or put a good copy in the file's place.",
    ),
    "landing_available": info("the landing can be used again"),
    "landing_fetch_refused": warning(
        "a file that the stage-shard loop misses cannot be fetched",
        "The loop waits for {path}; the other files go on.",
        "Read the reason above.",
        "Bring the file back to the source, or `exclude` it.",
    ),
    "landing_release_refused": warning(
        "a file that is no longer needed cannot be removed",
        "It takes room; nothing else is wrong.",
        "Read the reason above; run `ls -l` on {path} in the landing.",
        "Give the file back to the daemon's user, or remove it by hand.",
    ),
    "landing_unavailable": error(
        "the landing cannot be used",
        "Nothing is fetched until it can.",
        "Run `mount` and `ls -la` on the landing; the reason above says whose it is.",
        "Mount the disk again; if what it held is lost, make the folder that the message names.",
    ),
    "lister_failed": warning(
        "the worker that lists the source ended with an error",
        "It is started again; what is listed already goes on.",
        HANGS,
        "Mend the disk or the mount.",
    ),
    "listing_complete": routine("every file of the listing is vouched for"),
    "receipt_disputed": warning(
        "a file's content differs from its receipt",
        "It is hashed again, and fetched again where it is wrong.",
        "Read `dmesg` and the SMART values of its disk.",
        "Nothing, unless more files follow: then replace the disk.",
    ),
    "release_failed": warning(
        "a file cannot be removed",
        "It takes room; it is tried again.",
        "Read the reason above; run `ls -ld` on the file's folder.",
        "Give the folder back to the daemon's user, or mount it writable.",
    ),
    "source_available": info("the source can be seen again"),
    "source_changed": warning(
        "a source file changed",
        "It is proven again, and built again where its content is another.",
        "Ask who wrote to {path}.",
        "Nothing, if that was meant.",
    ),
    "source_moved": info("the source moved to another revision"),
    "source_pinned": info("the source's revision is pinned"),
    "source_polled": info(
        "changes in the source folder are found by looking alone",
        "New files are found a little later. More inotify instances (`fs.inotify`) would find them at once.",
    ),
    "source_refused": warning(
        "a source file has a name or kind that is refused",
        "It is passed over; the other files are used.",
        "Run `ls -l` on {path} in the source: a symbolic link, or an unusable name?",
        "Rename it, or put the file itself there.",
    ),
    "source_refuses": error(
        "the server refuses access",
        "Nothing is fetched; it is asked again every ten minutes.",
        SOURCE,
        "Mount it, renew the token.",
        alert="StokerSourceAway",
    ),
    "source_rotten": error(
        "a source file changed although nobody wrote to it",
        "It is not used; the other files are.",
        "Read `dmesg` and the SMART values of its disk.",
        "Put a good copy in the place of {path}, and replace a disk that rots.",
    ),
    "source_unavailable": warning(
        "the source cannot be seen",
        "No file is blamed; what is here is built.",
        SOURCE,
        "Mount it, renew the token.",
        alert="StokerSourceAway",
    ),
    "source_unreadable": warning(
        "a source file cannot be read",
        "It is passed over until it can.",
        "Run `ls -l` on {path} in the source; read `dmesg`.",
        "Let the daemon's user read it, or mend the disk.",
    ),
    "source_vanished": warning(
        "a source file is not listed any more",
        "What was built of it stays.",
        "Ask who removed it.",
        "Nothing, if that was meant; else put it back.",
    ),
}
