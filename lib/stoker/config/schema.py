"""The keys of the pipeline file with their defaults; sizes are in bytes, durations in seconds."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from stoker.config.reading import (
    AutoOrCount,
    Clock,
    DatasetName,
    Epochs,
    FilePath,
    Follow,
    Hours,
    Name,
    Natural,
    Number,
    Positive,
    PositiveSeconds,
    PositiveSize,
    Seconds,
    Secret,
    SecretWords,
    Section,
    ShareBelowOne,
    Size,
    Text,
    Zone,
)
from stoker.config.schema_evaluation import Promote, SuiteSchedule
from stoker.config.schema_train import Train
from stoker.config.sources import SOURCES, SourceKind
from stoker.store.layout import HotLayout, RuntimeLayout, StateLayout, WarmLayout

if TYPE_CHECKING:
    KindName = str
else:
    KindName = Literal[tuple(SOURCES)]


class Source(Section):
    """The origin of the parquet files."""

    kind: KindName
    path: FilePath | None = None
    include: tuple[Text, ...] = ()  # empty: every *.parquet
    exclude: tuple[Text, ...] = ()
    follow: Follow = False
    repo: Text | None = None
    repo_type: Literal["dataset", "model", "space"] = "dataset"
    revision: Text = "main"
    endpoint: Text | None = None
    token_file: FilePath | None = None
    urls_file: FilePath | None = None

    @property
    def spec(self) -> SourceKind:
        """All that differs by the kind."""
        return SOURCES[self.kind]

    @property
    def place(self) -> str:
        """Where the source is: a folder, a repository's name, a list's file."""
        return str(getattr(self, self.spec.key))


class Limit(Section):
    """Limits on the part of the source that is used."""

    files: Positive | None = None
    rows: Positive | None = None
    tokens: Positive | None = None


class Filters(Section):
    """The rows that become documents; `at_least` has a least value by column."""

    min_chars: Natural | None = 80  # in Unicode code points, as max_chars
    max_chars: Positive | None = None
    languages: tuple[Text, ...] | None = None
    at_least: dict[Text, Number] = Field(default_factory=dict)


class Dataset(Section):
    """A dataset: its source, and the part of the source that is used."""

    name: DatasetName
    version: Positive = 1
    source: Source
    limit: Limit = Limit()
    text_column: Text = "text"
    tokens_column: Text | None = None  # of lists of token ids, a document a row, instead of text
    filters: Filters = Filters()

    @property
    def column(self) -> str:
        """The column that holds the documents."""
        return self.text_column if self.tokens_column is None else self.tokens_column


# Keys that a pipeline without a dataset cannot have; its trainer brings its own data.
OF_DATA = ("hot", "dataset", "download", "stage", "tokenizer", "shard", "evict", "plan", "train.start_when")
# Its dataset. No file can name it: a name has a character.
NO_DATASET = Dataset.model_construct(name="", source=Source.model_construct(kind="folder"))


class Download(Section):
    """Transfer policy."""

    files_at_once: Positive = Field(default=4, le=256)
    stall: PositiveSeconds = 300.0  # the longest time without a byte
    bandwidth: PositiveSize | None = None  # bytes per second
    attempts: Positive = 5


class Stage(Section):
    """How far staging runs ahead of the builders."""

    queue_files: Positive = 8
    queue_bytes: PositiveSize = 20 * 2**30
    copies: AutoOrCount = "auto"
    free_floor: Size = 20 * 2**30
    settle: Seconds = 180.0  # a file must be unchanged for so long before a worker reads it


class TokenizerTraining(Section):
    """A byte-level BPE of vocab_size entries, trained on the first train_bytes of text."""

    vocab_size: Positive = Field(default=32000, ge=257, le=2**24)
    train_bytes: PositiveSize = 200 * 10**6


class Tokenizer(Section):
    """The tokenizer: exactly one of `train` and `file` is set."""

    train: TokenizerTraining | None = None
    file: FilePath | None = None
    engine: Literal["auto", "fastokens", "tokenizers"] = "auto"


class Commit(Section):
    """A builder makes its work durable after so many seconds or bytes, at the first of both."""

    every: PositiveSeconds = 2.0
    bytes: PositiveSize = 64 * 2**20


class BuilderMemory(Section):
    """Limits on the resident bytes of a builder."""

    soft: ClassVar[int] = 320 * 2**20  # above, a new builder takes over at a commit
    hard: Size = Field(default=2**30, ge=soft)  # above, the builder is killed


class Shard(Section):
    """How shard sets are built, and when their parquet leaves hot."""

    val_ratio: ShareBelowOne = 0.005
    shard_tokens: Positive = 100_000_000  # tokens per file
    workers: AutoOrCount = "auto"
    commit: Commit = Commit()
    memory: BuilderMemory = BuilderMemory()
    release: Literal["never", "after_proof", "after_sync"] = "after_proof"


class Evict(Section):
    """When shard sets leave hot for warm: while too few bytes are free, but a least amount stays on hot."""

    target_free: Size | None = None  # bytes to keep free; None: a tenth of the disk
    keep_hot_sets: Natural = 1


class Plan(Section):
    """The order of training data."""

    order: Literal["listing", "arrival"] = "listing"
    hold: Seconds = 1800.0
    segment_tokens: Positive = 10**9
    epochs: Epochs = None  # None: unlimited


class BackoffPolicy(Section):
    """The pause after a failed launch: `first`, doubled after each further failure up to `most`."""

    first: PositiveSeconds = 5.0
    most: PositiveSeconds = 600.0


class PhaseLimits(Section):
    """The longest time without progress in one phase of the trainer; None: `supervise.hang_limit`."""

    load: PositiveSeconds | None = None
    compile: PositiveSeconds | None = None  # None: twice hang_limit, at least 30 minutes
    eval: PositiveSeconds | None = None
    checkpoint: PositiveSeconds | None = None
    wait_data: PositiveSeconds | None = None  # only while the plan has a batch for it
    idle: PositiveSeconds = 60.0  # a step without CPU time and I/O, unless steps are slow; suspect at a third


class Supervise(Section):
    """Limits for the trainer: time to stop, time without progress, failed launches in a row."""

    stop_time: PositiveSeconds = 300.0
    hang_limit: PositiveSeconds = 900.0
    limits: PhaseLimits = PhaseLimits()
    no_progress_launches: Positive = 5
    skips_in_1000_steps: Natural = 3  # of windows that make a step not finite; and of spikes
    # What follows a spike of the loss: it is told, or the run goes back and skips its windows, too.
    on_spike: Literal["tell", "rollback"] = "tell"
    backoff: BackoffPolicy = BackoffPolicy()


class Quarantine(Section):
    """The budget of the quarantine: the newest entries stay, older ones are removed."""

    keep_checkpoints: Natural = 3
    keep_files: ClassVar[int] = 100  # for each other kind of entry, as keep_bytes
    keep_bytes: Size = 20 * 2**30
    revalidate: PositiveSeconds | None = 86_400.0  # between two checks of a quarantined file; None: never


class Ports(Section):
    """The port of each daemon; 0: any free port."""

    download: Natural = Field(default=9811, le=65535)
    shard: Natural = Field(default=9812, le=65535)
    train: Natural = Field(default=9813, le=65535)


class Metrics(Section):
    """The address and ports at which the daemons serve metrics."""

    address: Text = "127.0.0.1"
    ports: Ports = Ports()


class Route(Section):
    """A way to a person: one of url, url_file and command."""

    url: Secret | None = None  # of apprise, such as ntfys://HOST/TOPIC
    url_file: FilePath | None = None  # the same, alone in a file
    command: SecretWords = ()  # gets the text on its standard input, and in place of {message}
    level: Literal["warning", "error"] | None = None  # events of this level; None: warning, without words
    words: tuple[Text, ...] = ()  # events of these words as well, whatever their level
    quiet: Hours | None = None  # local time; errors pass, the rest waits until their end
    most_an_hour: Positive = 6  # messages; then what comes is gathered into one

    @model_validator(mode="after")
    def _has_one_address(self) -> Route:
        if sum(map(bool, (self.url, self.url_file, self.command))) != 1:
            raise ValueError("needs one of url, url_file and command; write one of the three")
        return self

    @property
    def least(self) -> str | None:
        """The level from which on all is told; None: its words alone."""
        return self.level or (None if self.words else "warning")


class Notify(Section):
    """What tells people how it goes; an empty list stands for nothing of all this."""

    routes: tuple[Route, ...] = ()
    daily: Clock | None = None
    heartbeat: Secret | None = None
    timezone: Zone | None = None


class Pipeline(Section):
    """A checked pipeline file; all its paths are absolute."""

    name: Name
    state: FilePath
    hot: FilePath
    warm: FilePath | None = None
    dataset: Dataset
    download: Download = Download()
    stage: Stage = Stage()
    tokenizer: Tokenizer
    shard: Shard = Shard()
    evict: Evict = Evict()
    plan: Plan = Plan()
    train: Train
    evaluations: tuple[SuiteSchedule, ...] = ()
    promote: Promote | None = None
    supervise: Supervise = Supervise()
    quarantine: Quarantine = Quarantine()
    metrics: Metrics = Metrics()
    notify: Notify = Notify()
    _file: Path = PrivateAttr(default=Path())
    _of_nothing = field_validator("notify", mode="before")(lambda value: {} if value == [] else value)

    @property
    def file(self) -> Path:
        """The absolute path of the pipeline file."""
        return self._file

    @property
    def has_data(self) -> bool:
        """Whether the pipeline prepares a dataset; a trainer of the user's own may bring its own data."""
        return bool(self.dataset.name)

    @property
    def owner(self) -> str:
        """The text in the owner locks of the pipeline's directories."""
        return f"pipeline {self.name} (state {self.state})"

    @cached_property
    def layout(self) -> StateLayout:
        """The paths in the state directory."""
        return StateLayout(self.state)

    @cached_property
    def hot_layout(self) -> HotLayout:
        """The paths on the hot disk."""
        return HotLayout(self.hot)

    @cached_property
    def warm_layout(self) -> WarmLayout | None:
        """The paths on the warm disk; None for a pipeline without warm."""
        return None if self.warm is None else WarmLayout(self.warm)

    @property
    def source_root(self) -> Path:
        """The directory of all source files: the folder itself, or the landing of the downloads."""
        if self.dataset.source.path is not None:
            return self.dataset.source.path
        return (self.warm_layout or self.hot_layout).landing(self.dataset.name)

    @property
    def source_home(self) -> Path:
        """A directory that exists and is not empty while the disk of the source files is mounted."""
        return self.dataset.source.path or self.warm or self.hot

    @property
    def runtime(self) -> RuntimeLayout:
        """The paths of sockets and status; creates a private directory where no other is given."""
        return RuntimeLayout.of(self.name, self.state)
