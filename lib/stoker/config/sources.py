"""The kinds of source: what differs by the kind, a row each. Nothing else asks which one it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SourceKind:
    """A kind of source.

    `key` of dataset.source says where it is, `advice` what to write there; `others` are the keys that mean
    something for this kind alone. `lister` is the worker's module that lists it. `source` names the class by
    which the download watchdog brings its files: a subclass of stokerd.download.source.Source.
    `is_fetched`: its files are brought into the landing, and removed from there; else they are read in place.
    `has_token`: its requests carry the hub's access token.
    """

    key: str
    advice: str
    others: frozenset[str] = frozenset()
    lister: str
    source: str
    is_fetched: bool = True
    has_token: bool = False


SOURCES = {
    "hub": SourceKind(
        key="repo",
        advice="name the repository, as owner/name",
        others=frozenset({"endpoint", "follow", "repo_type", "revision", "token_file"}),
        lister="stoker.corpus.source.hub_worker",
        source="stokerd.download.remote:RemoteSource",
        has_token=True,
    ),
    "urls": SourceKind(
        key="urls_file",
        advice='name the file of lines "URL [sha256]"',
        lister="stoker.corpus.source.urls_worker",
        source="stokerd.download.remote:RemoteSource",
    ),
    "folder": SourceKind(
        key="path",
        advice="name the directory that holds the parquet",
        lister="stoker.corpus.staging.lister_worker",
        source="stokerd.download.folder:FolderSource",
        is_fetched=False,
    ),
}
