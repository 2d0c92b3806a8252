"""A secret of one word in a file: an operator's own, or a systemd credential."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

from stoker.store.errors import StokerError, storage_errors
from stoker.systemd.units import NO_TOKEN


def credential(name: str, environ: Mapping[str, str]) -> Path | None:
    """Returns the file of systemd's credential, None where there is none or it is the unit's default."""
    directory = environ.get("CREDENTIALS_DIRECTORY")
    file = Path(directory, name) if directory else None
    with contextlib.suppress(OSError, UnicodeDecodeError):  # a wrong one: its reader says so
        if file is not None and file.read_text().strip() == NO_TOKEN:
            return None
    return file if file is not None and file.exists() else None


def read_secret(file: Path, what: str, error: type[StokerError]) -> str:
    """Returns the word in the file; raises `error`, which never quotes the content."""
    try:
        with storage_errors("read", file):
            return one_word(file.read_text(), file, what, error)
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"{what} cannot be read: {problem}; correct {file}") from problem


def one_word(text: str, where: Path | str, what: str, error: type[StokerError]) -> str:
    """Returns the word that the text is; raises `error`."""
    words = text.split()
    if len(words) != 1 or not re.fullmatch("[!-~]+", words[0]):  # an error about its header would tell it
        raise error(f"{where} is to hold {what}, one word of ASCII, and nothing else; it has {len(words)}")
    return words[0]


def secret_file_flaw(file: Path, what: str = "the hub's access token") -> str:
    """Returns what is wrong with a secret's file and what to do, never its content; empty for a good one."""
    try:
        mode, words = file.stat().st_mode, file.read_bytes().split()
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}"
    if len(words) != 1:
        return f"{file} holds {len(words)} words; write {what} alone into it, on one line"
    if mode & 0o004:
        return f"{file} may be read by every user (mode {mode & 0o777:04o}): chmod 600 {file}"
    return ""
