"""What an operator should look at when no connection comes about: certificates, the clock, proxies."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from stoker.corpus.http.remote_file import shown
from stoker.store.errors import UnavailableError


def client_does_not_start(error: Exception) -> UnavailableError:
    """For an HTTP client that does not like its environment."""
    said = str(error).split(". Make sure", maxsplit=1)[0]
    return UnavailableError(
        f"the HTTP client does not start: {said}; look at HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE"
    )


def advice(error: Exception, url: str) -> str:
    """What to look at after a failed connection to that address, to be put behind it; mostly nothing."""
    text = ""
    if proxy := proxy_of(url):
        text = f" (through the proxy {proxy})"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        text += "; set SSL_CERT_FILE if server or proxy have a certificate of your own, and look at the clock"
    return text


def proxy_of(url: str) -> str:
    """The proxy that the environment names for that address, without its password; empty for none."""
    parts, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    if not proxy or proxy_bypass(parts.hostname or ""):
        return ""
    return shown(proxy if "://" in proxy else f"http://{proxy}")
