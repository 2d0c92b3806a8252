"""A daemon's Prometheus metrics: one registry, named by one rule, served on loopback.

Names are `stoker_<thing>_<unit>[_total]`; labels have few values. Pipeline and daemon are labels of the
target, which the target file names, so a page has neither. Every series is there from the start: a gauge
without a value is NaN, a counter 0, because an increase is seen only between two samples.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import socket
import socketserver
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from stoker.kit.event_types import words
from stoker.kit.ports import listener_on
from stoker.kit.process import sample_process
from stoker.store.errors import ConfigError, UnavailableError

PREFIX = "stoker_"
PORT_KEYS = {"download_watchdog": "download", "stage_shard": "shard", "train_supervisor": "train"}
CLIENT_TIMEOUT_S = 5.0


disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Figure:
    """A metric read from the daemon's status.

    `path` leads to the value; each `*` in it stands for the values of a label. `labels` are the names of
    these labels with the values known from the start; a label without any shows what the status has. A
    mapping counts as its length. A counter's name ends in `_total`.
    """

    name: str
    doc: str
    path: str
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def family(self, status: Mapping[str, Any]) -> Metric:
        """Returns the metric family with the values in a status."""
        is_counter = self.name.endswith("_total")
        kind = CounterMetricFamily if is_counter else GaugeMetricFamily
        family = kind(f"{PREFIX}{self.name}", self.doc, labels=tuple(self.labels))
        known = itertools.product(*self.labels.values())
        values = dict.fromkeys(known) | dict(_found(status, self.path.split(".")))
        for labels, value in values.items():
            family.add_metric(labels, value if value is not None else 0.0 if is_counter else math.nan)
        return family


# Metrics of every daemon: its size and CPU time, its version, its events, the requests to it.
OWN = (
    Figure("daemon_rss_bytes", "Resident bytes of the daemon.", "rss_bytes"),
    Figure("daemon_threads", "Threads of the daemon.", "threads"),
    Figure("daemon_start_time_seconds", "Unix time at which the daemon started.", "started"),
    Figure(
        "daemon_unclean_start_time_seconds",
        "Unix time at which the daemon last started after a kill or a failure.",
        "unclean_at",
    ),
    Figure("daemon_cpu_seconds_total", "Seconds of CPU time of the daemon.", "cpu_s"),
    Figure(
        "daemon_beat_timestamp_seconds", "Unix time at which the daemon's loop last got round.", "beat_at"
    ),
    Figure("daemon_clock_seconds", "Unix time of this machine at the scrape.", "clock"),
    Figure(
        "build_info", "Version of Stoker and of Python; always 1.", "build.*.*", {"version": (), "python": ()}
    ),
    Figure("events_total", "Events of the daemon, by event type.", "events.*", {"event": ()}),
    Figure("requests_waiting", "Requests to the daemon without an answer.", "requests.waiting"),
    Figure(
        "requests_oldest_timestamp_seconds",
        "Unix time at which the oldest waiting request was filed.",
        "requests.oldest_at",
    ),
)
STEP_BUCKETS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0)  # and one for the rest
SAVE_BUCKETS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0)


class Metrics:
    """A daemon's metrics and the small server that serves them.

    `figures` are read from `status`, the daemon's current status; the metrics in OWN come with every daemon.
    `events` counts events by event type. `beat_at` is when the loop last got round (time.time).
    `requests` returns how many requests wait, and since when the oldest does.
    """

    def __init__(
        self, daemon: str, requests: Callable[[], tuple[int, float | None]] = lambda: (0, None)
    ) -> None:
        self.daemon, self._requests = daemon, requests
        self.figures: Sequence[Figure] = ()
        self.status: Mapping[str, Any] = {}
        self.events: Counter[str] = Counter(dict.fromkeys(words(daemon), 0))
        self.beat_at = self._started = time.time()
        self.unclean_at: float | None = None  # the last start after an end that was not in order
        self._build = {metadata.version("stoker"): {sys.version.split()[0]: 1}}
        self._server: _Server | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def counted(self) -> dict[str, Any]:
        """Returns what this process's next image goes on counting from."""
        return {"started": self._started, "unclean_at": self.unclean_at, "events": self.events}

    def go_on(self, counted: Mapping[str, Any]) -> None:
        """Goes on from what the image before has counted; histograms begin again."""
        self._started, self.unclean_at = counted["started"], counted.get("unclean_at")
        self.events.update(counted["events"])

    def histogram(self, name: str, doc: str, buckets: Sequence[float]) -> Histogram:
        """Returns a new histogram of seconds on the page; `name` is without the prefix."""
        return Histogram(f"{PREFIX}{name}", doc, buckets=buckets, registry=self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics; the registry calls this at each scrape."""
        me, (waiting, oldest_at) = sample_process(os.getpid()), self._requests()
        own = {
            "rss_bytes": me.rss_bytes,
            "cpu_s": me.cpu_s,
            "threads": threading.active_count(),
            "started": self._started,
            "unclean_at": self.unclean_at,
            "beat_at": self.beat_at,
            "clock": time.time(),
            "build": self._build,
            "events": self.events.copy(),
            "requests": {"waiting": waiting, "oldest_at": oldest_at},
        }
        for figures, status in ((OWN, own), (self.figures, self.status)):
            for figure in figures:
                yield figure.family(status)

    def text(self) -> bytes:
        """Returns the exposition text that a scrape gets."""
        return generate_latest(self._registry)

    def show(self, figures: Sequence[Figure], status: Mapping[str, Any]) -> None:
        """Sets the figures with their first status, and begins to answer scrapes."""
        self.figures, self.status = figures, status
        self.answer()

    def answer(self) -> None:
        """Begins to answer scrapes; one that came earlier has waited, because no series may appear later."""
        if self._server is not None:
            self._server.start()

    def serve(self, address: str, port: int, *, listening: int | None = None) -> str:
        """Takes the port for /metrics (port 0 asks for any free port); returns where it is, as host:port.

        `listening` is the socket that this process's image before listened on. Raises UnavailableError when
        the port is taken, ConfigError when this machine cannot serve on the address at all.
        """
        key = f"metrics.ports.{PORT_KEYS.get(self.daemon, self.daemon)}"
        try:
            self._server = _Server(address, port, self._registry, listening)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                who = f" by {holder}" if (holder := listener_on(port)) else ""
                raise UnavailableError(
                    f"{key}: port {port} on {address} is taken{who}; stop what uses it, or set {key} to "
                    "another port (0 = any free one)"
                ) from error
            raise ConfigError(
                f"metrics cannot be served on {address} port {port}: {error.strerror or error}; "
                f"correct metrics.address or {key}"
            ) from error
        host = f"[{address}]" if ":" in address else address
        return f"{host}:{self._server.server_address[1]}"

    @property
    def listening(self) -> int:
        """The descriptor of the socket that serve() listens on."""
        assert self._server is not None
        return self._server.fileno()

    def close(self) -> None:
        if self._server is not None:
            self._server.end()
            self._server = None


def _found(status: Any, path: Sequence[str], *labels: str) -> Iterator[tuple[tuple[str, ...], float | None]]:
    """Yields the values at a path of a status, each with its labels; None for a value that is missing."""
    if not path:
        known = len(status) if isinstance(status, Mapping) else status
        yield labels, None if known is None else float(known)
    elif path[0] == "*":
        for label, inner in (status or {}).items():
            yield from _found(inner, path[1:], *labels, label)
    else:
        yield from _found((status or {}).get(path[0]), path[1:], *labels)


class _Handler(prometheus_client.MetricsHandler):
    timeout = CLIENT_TIMEOUT_S


class _Server(socketserver.ThreadingTCPServer):
    """Answers scrapes from a thread.

    Not an HTTPServer: that asks the resolver for a host name, maybe for a minute.
    """

    allow_reuse_address = daemon_threads = True

    def __init__(
        self, address: str, port: int, registry: CollectorRegistry, listening: int | None = None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), _Handler.factory(registry), bind_and_activate=listening is None)
        if listening is not None:
            self.socket.close()
            self.socket = socket.socket(fileno=listening)
            self.server_address = self.socket.getsockname()
        self._is_ending = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread that answers, once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._answer, name="metrics", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Stops answering at once; serve_forever() would check for its end only every half second."""
        self._is_ending = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes the waiting thread
        if self._thread is not None:
            self._thread.join(1.0)
        self.server_close()

    def _answer(self) -> None:
        while not self._is_ending:
            self.handle_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors of a request: the client went away."""
