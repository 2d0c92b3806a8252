"""What is told of a source folder: it cannot be seen, is empty, settles, or nobody tells of changes in it."""

from __future__ import annotations

from stoker.config.units import format_duration
from stoker.corpus.source.arrivals import Look
from stoker.corpus.source.folder import DEFAULT_INCLUDE
from stoker.kit.daemon import DaemonContext
from stoker.store.errors import UnavailableError
from stokerd.common.alerts import WARN_EVERY_S, Alerts

_WORD = "source_unavailable"


class FolderNews:
    """`trouble` says why the folder cannot be seen now, `empty` why there is nothing in it to read.

    `polling` says why nobody tells of changes in it, None before the first look; `foreign` is how many files
    other clients have not finished.
    """

    def __init__(self, context: DaemonContext, root: str) -> None:
        self._context, self._events, self._root = context, context.events, root
        self._told = Alerts(context.events, WARN_EVERY_S)
        self._include = context.pipeline.dataset.source.include or DEFAULT_INCLUDE
        self._first_foreign: tuple[str, ...] = ()
        self._settling = False
        self.trouble = self.empty = ""
        self.polling: str | None = None
        self.foreign = 0

    def take(self, look: Look, receipts: int, every_s: float) -> bool:
        """Tell what is new in a look; False, with --once UnavailableError, when it shows no files."""
        before = self.trouble or self.empty
        self.trouble = look.trouble(self._root, receipts)
        if self.trouble and self._context.once:
            raise UnavailableError(self.trouble)
        self.empty = "" if self.trouble or look.files else self._emptiness(look)
        now = self.trouble or self.empty
        if before and before != now:
            self._told.clear(_WORD, before, tell="" if now else "source_available", path=self._root)
        self.remind()
        if self.trouble:
            return False
        self._take_polling(look.polling, every_s)
        self._take_foreign(look)
        return True

    def remind(self) -> None:
        """Say again each minute that nothing can come of the folder."""
        if (reason := self.trouble or self.empty) and not self._context.once:
            self._told.raise_(_WORD, reason, reason=reason)

    def waits(self, files: int, due: float | None, now: float) -> str:
        """What the hashing waits for: a source that is empty, or files that settle, the first at `due`."""
        before, self._settling = self._settling, due is not None
        if due is None:
            return self.empty
        settle = format_duration(self._context.pipeline.stage.settle)
        text = f"{files:,} file{'s settle' if files != 1 else ' settles'} (stage.settle: {settle})"
        text += f", {format_duration(due - now)} left until the first is read"
        if not before:
            self._context.log.info("files_settle", message=text)
        return text

    def _emptiness(self, look: Look) -> str:
        refused = "".join(f" ({path}: {reason})" for path, reason in look.refused[:1])
        return (
            f"the source folder {self._root} holds no file that matches {', '.join(self._include)}{refused}; "
            "put files there, or correct dataset.source.path or include"
        )

    def _take_polling(self, polling: str, every_s: float) -> None:
        if polling and polling != self.polling:
            self._events.record("source_polled", path=self._root, reason=polling, every_s=round(every_s, 1))
        elif self.polling and not polling:
            self._events.record("source_watched", path=self._root)
        self.polling = polling

    def _take_foreign(self, look: Look) -> None:
        if look.foreign and look.foreign != self._first_foreign:
            self._events.record(
                "foreign_files",
                count=look.foreign_in_all,
                first=look.foreign[0],
                reason="another client's; left alone",
            )
        self._first_foreign, self.foreign = look.foreign, look.foreign_in_all
