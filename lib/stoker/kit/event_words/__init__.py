"""The register of event words: every word that a daemon records or logs, with what it means and what to do.

Each recorded word's counter is exported at 0 from the start. deploy/systemd/stoker.catalog is made of the
register (scripts/catalog). Tests find every recorded word here, at its level.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.kit.event_words.checkpoints import CHECKPOINTS
from stoker.kit.event_words.download import DOWNLOAD
from stoker.kit.event_words.every import EVERY, LOGGED
from stoker.kit.event_words.sharding import SHARD
from stoker.kit.event_words.training import TRAINING
from stoker.kit.event_words.word import Word, Words, message_id
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR

WORDS: Mapping[str, Words] = {
    DOWNLOAD_WATCHDOG: {**EVERY, **DOWNLOAD},
    STAGE_SHARD: {**EVERY, **SHARD},
    TRAIN_SUPERVISOR: {**EVERY, **CHECKPOINTS, **TRAINING},
}
REGISTER: Words = {**LOGGED, **WORDS[DOWNLOAD_WATCHDOG], **WORDS[STAGE_SHARD], **WORDS[TRAIN_SUPERVISOR]}

__all__ = ["REGISTER", "WORDS", "Word", "Words", "message_id", "words_of"]


def words_of(daemon: str) -> Words:
    """Returns the event words of a daemon; none for another process."""
    return WORDS.get(daemon, {})
