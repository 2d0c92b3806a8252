"""Requests a file over HTTP: follows redirects itself, sends the token to the hub alone, limits each wait.

Proxies come from the environment (HTTPS_PROXY and its kin), certificates from the system. A caller belongs to
one thread.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from stoker.corpus.http.hub import HubRepo, explain, origin
from stoker.corpus.http.remote_file import shown
from stoker.corpus.http.retry_rules import Answer, FetchFailed, refusal
from stoker.store.errors import UnavailableError

MOST_REDIRECTS = 10
_SHORT_BODY = 1 << 16
_REDIRECTS = (301, 302, 303, 307, 308)
_AGENT = "stoker/1 (+file transfer)"


@dataclass(frozen=True)
class HttpConfig:
    """Settings of requests: the hub and its token; seconds to connect, between two bytes, for a head."""

    connect_s: float
    read_s: float
    hub: HubRepo | None = None
    token: str | None = None
    head_s: float = 120.0


_certificates = cache(httpx2.create_ssl_context)  # one for all threads: to read them takes 26 ms


class HttpClient:
    """Opens answers for one thread, over its own connections, which stay alive between requests.

    Raises UnavailableError where the environment's proxies or certificates cannot be used.
    """

    def __init__(self, manners: HttpConfig) -> None:
        self._manners = manners
        self._hub = origin(manners.hub.endpoint) if manners.hub else None
        limits = httpx2.Limits(max_keepalive_connections=4, keepalive_expiry=30.0)
        timeout = httpx2.Timeout(manners.read_s, connect=manners.connect_s, pool=manners.connect_s)
        try:
            self._client = httpx2.Client(
                verify=_certificates(), timeout=timeout, limits=limits, follow_redirects=False
            )
        except (ImportError, ValueError, httpx2.InvalidURL, OSError) as error:
            raise client_does_not_start(error) from error
        self._client.headers = httpx2.Headers(
            {"User-Agent": _AGENT, "Accept": "*/*", "Accept-Encoding": "identity"}
        )
        self._sockets = weakref.WeakSet[socket.socket]()

    @contextlib.contextmanager
    def open(
        self, url: str, offset: int = 0, validator: str = ""
    ) -> Iterator[tuple[Answer, Iterator[bytes]]]:
        """Requests the bytes from `offset` on, if the content still has that validator.

        Yields the answer's head, and the bytes as they arrive, undecoded. Raises FetchFailed without an
        answer with a body, or when the bytes end early.
        """
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        if offset and validator:
            headers["If-Range"] = validator
        for redirects in count():
            with self._ask(url, headers) as response:
                answer = Answer(
                    status=response.status_code,
                    headers={name.lower(): value for name, value in response.headers.items()},
                    where=shown(url),
                    at_hub=origin(url) == self._hub,
                    redirected=redirects > 0,
                )
                if answer.status in (200, 206):
                    yield answer, _body(answer, response)
                    return
                self._drain(response)
                if answer.status not in _REDIRECTS:
                    raise self._refusal(answer)
                url = _next(url, answer, redirects)

    @contextlib.contextmanager
    def _ask(self, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        where = shown(url)
        own = dict(headers)
        if self._manners.token and origin(url) == self._hub:
            own["Authorization"] = f"Bearer {self._manners.token}"
        with _failures(where, "connect"):
            extensions = {"trace": self._connected}
            request = self._client.build_request("GET", url, headers=own, extensions=extensions)
            with self._limited():
                response = self._client.send(request, stream=True)
        try:
            yield response
        finally:
            with contextlib.suppress(httpx2.HTTPError, OSError):
                response.close()

    def _drain(self, response: httpx2.Response) -> None:
        # A short body is read to its end; otherwise the connection could not be used again.
        length = response.headers.get("content-length", "")
        if length.isdecimal() and int(length) <= _SHORT_BODY:
            with self._limited(), contextlib.suppress(httpx2.HTTPError, httpx2.StreamError, OSError):
                response.read()

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        # The client's own timeouts are between two bytes; only closing the socket ends a head that drips.
        timer = threading.Timer(self._manners.head_s, self._hang_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _hang_up(self) -> None:
        for each in list(self._sockets):
            with contextlib.suppress(OSError, ValueError):
                each.shutdown(socket.SHUT_RDWR)

    def _connected(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            found = info["return_value"].get_extra_info("socket")
            if found is not None:
                self._sockets.add(found)

    def _refusal(self, answer: Answer) -> FetchFailed:
        hub = self._manners.hub
        if hub is not None and answer.at_hub and answer.status in (401, 403, 404, 410):
            code, has_token = answer.headers.get("x-error-code", ""), self._manners.token is not None
            kind, reason = explain(answer.status, code, hub, token=has_token, pinned=True)
            return FetchFailed(kind, reason, status=answer.status)
        return refusal(answer, time.time())


def _body(answer: Answer, response: httpx2.Response) -> Iterator[bytes]:
    with _failures(answer.where, "broken"):
        yield from response.iter_raw()


def _next(url: str, answer: Answer, redirects: int) -> str:
    location, fault = answer.headers.get("location", ""), ""
    try:
        target = httpx2.URL(urljoin(url, location))
    except (httpx2.InvalidURL, ValueError) as error:
        raise FetchFailed("redirects", f"{answer.where} redirects to what is no URL: {error}") from error
    if not location or target.scheme not in ("http", "https"):
        fault = "to no http address"
    elif origin(url)[0] == "https" and target.scheme == "http":
        fault = "from https to http"
    elif redirects >= MOST_REDIRECTS:
        fault = f"in a circle, or more than {MOST_REDIRECTS} times"
    if fault:
        raise FetchFailed("redirects", f"{answer.where} redirects {fault}")
    return str(target)


# The client's exceptions, the kind of failure (None: the caller's own), and its text; the first match
# counts.
_FAILURES: tuple[tuple[tuple[type[Exception], ...], str | None, str], ...] = (
    ((httpx2.ConnectTimeout, httpx2.PoolTimeout), "connect", ": no connection in time"),
    ((httpx2.TimeoutException,), "stalled", " sends nothing"),
    ((httpx2.RemoteProtocolError,), "short", " ended too early: {error}"),
    ((httpx2.ProxyError,), "connect", ": the proxy refuses: {error}"),
    ((httpx2.ConnectError,), "connect", ": {error}{advice}"),
    ((httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.LocalProtocolError), "refused", ": {error}"),
    ((httpx2.HTTPError, httpx2.StreamError, ssl.SSLError), None, ": {error}"),
)


@contextlib.contextmanager
def _failures(where: str, otherwise: str) -> Iterator[None]:
    """Turns exceptions of the client into FetchFailed; `otherwise` is the kind of those without their own."""
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ssl.SSLError) as error:
        kind, text = next((kind, text) for types, kind, text in _FAILURES if isinstance(error, types))
        said = text.format(error=str(error) or type(error).__name__, advice=advice(error, where))
        raise FetchFailed(kind or otherwise, where + said) from error


def client_does_not_start(error: Exception) -> UnavailableError:
    """Returns the error for an HTTP client that rejects its environment."""
    said = str(error).split(". Make sure", maxsplit=1)[0]
    if isinstance(error, httpx2.InvalidURL):  # which may quote a piece of the password
        said = "the address of a proxy cannot be read (# / ? @ in its password are written %23 %2F %3F %40)"
    return UnavailableError(
        f"the HTTP client does not start: {said}; check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE"
    )


def advice(error: Exception, url: str) -> str:
    """Returns advice to append to the error of a failed connection to that address; usually empty."""
    text, parts, proxies = "", urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    if proxy and not proxy_bypass(parts.hostname or ""):
        text = f" (through the proxy {shown(proxy if '://' in proxy else f'http://{proxy}')})"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        text += "; set SSL_CERT_FILE if server or proxy have a certificate of your own, and check the clock"
    return text
