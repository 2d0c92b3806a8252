"""Prometheus, Alertmanager and node_exporter on loopback, with the shipped configuration, for tests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Collection, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.waiting import wait_until

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
BINARIES = ("prometheus", "promtool", "prometheus-alertmanager", "amtool", "prometheus-node-exporter")
START_S = 30.0
# What Grafana fills in by itself, for a scenario that was scraped each second.
BUILT_IN = {
    **{"__rate_interval": "5s", "__interval": "1s", "__interval_ms": "1000"},
    **{"__range": "60s", "__range_s": "60"},
}

LACKING = [name for name in BINARIES if shutil.which(name) is None]
if LACKING:
    warnings.warn(f"PROMETHEUS IS NOT TESTED: {', '.join(LACKING)} missing", stacklevel=1)
# For the tests of a module: pytestmark = needs_prometheus
needs_prometheus = [
    pytest.mark.prometheus,
    pytest.mark.skipif(bool(LACKING), reason=f"no {', '.join(LACKING)} here"),
]


class Server:
    """A server on a free port of loopback; it ends with the test's process, whatever becomes of that."""

    def __init__(self, home: Path, *argv: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / f"{argv[0]}.log"
        command = ["setpriv", "--pdeathsig", "KILL", *argv, "--web.listen-address=127.0.0.1:0"]
        with self.log.open("wb") as stream:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, cwd=home
            )
        try:
            self.address: str = wait_until(self._listens, START_S, f"{argv[0]} to listen")
        except BaseException:
            self.end()
            raise

    def _listens(self) -> str | None:
        said = self.log.read_text()
        assert self._process.poll() is None, said
        found = re.search(r'msg="Listening on" address=(\S+)', said)
        return found[1] if found else None

    def get(self, path: str, **query: Any) -> bytes:
        """The body of an answer, also where the server calls the request wrong."""
        asked = f"?{urllib.parse.urlencode(query, doseq=True)}" if query else ""
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}{asked}", timeout=10) as answer:
                body: bytes = answer.read()
        except urllib.error.HTTPError as error:
            if error.code not in (400, 422):
                raise
            body = error.read()
        return body

    def is_ready(self) -> bool:
        """Whether it answers requests; one that has just begun to listen says 503 for a moment."""
        try:
            return bool(self.get("/-/ready"))
        except urllib.error.HTTPError:
            return False

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Prometheus(Server):
    """A Prometheus with the shipped configuration, but for addresses and times; use it with `with`.

    `targets` is the directory of the daemons' target files, `node` the address of a node_exporter, `rules`
    the directory of the rules, `consoles` that of console templates. `alertmanager` is an Alertmanager's
    address. A `home` with the data of an ended Prometheus is taken up. A sample counts for `lookback`.
    """

    def __init__(
        self,
        home: Path,
        *,
        targets: Path | None = None,
        node: str | None = None,
        rules: Path | None = DEPLOY / "rules",
        alertmanager: str | None = None,
        consoles: Path | None = None,
        interval: str = "1s",
        lookback: str = "5m",
    ) -> None:
        config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
        config["global"] = {"evaluation_interval": interval}
        config["rule_files"] = [f"{rules}/{Path(each).name}" for each in config["rule_files"] if rules]
        config["alerting"]["alertmanagers"][0]["static_configs"] = [{"targets": _some(alertmanager)}]
        stoker, exporter = config["scrape_configs"]
        stoker["file_sd_configs"] = [{"files": [f"{targets}/*.json"], "refresh_interval": interval}]
        exporter["static_configs"] = [{"targets": _some(node)}]
        stoker["scrape_interval"] = exporter["scrape_interval"] = interval
        home.mkdir(parents=True, exist_ok=True)
        (home / "prometheus.json").write_text(json.dumps(config))
        flags = [f"--config.file={home / 'prometheus.json'}", f"--storage.tsdb.path={home / 'data'}"]
        # It takes Prometheus five seconds to know its Alertmanager; an alert before that is sent again.
        flags += [f"--query.lookback-delta={lookback}", f"--rules.alert.resend-delay={interval}"]
        flags += [f"--web.console.templates={consoles}"] if consoles else []
        super().__init__(home, "prometheus", *flags)
        wait_until(self.is_ready, START_S, "Prometheus to be ready")

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def api(self, path: str, **query: Any) -> Any:
        """The data of an answer of /api/v1; ValueError with the server's word where it refuses."""
        answer = json.loads(self.get(f"/api/v1/{path}", **query))
        if answer["status"] != "success":
            raise ValueError(answer["error"])
        return answer["data"]

    def query(self, expr: str, at: float | None = None) -> list[Any]:
        """The series of an expression, as they are now or were at a Unix time."""
        moment = {} if at is None else {"time": at}
        found: list[Any] = self.api("query", query=expr, **moment)["result"]
        return found

    def query_range(self, expr: str, began: float, ended: float, step_s: float = 1.0) -> list[Any]:
        """The series of an expression over a time."""
        span = {"start": began, "end": ended, "step": step_s}
        found: list[Any] = self.api("query_range", query=expr, **span)["result"]
        return found

    def wait_for(self, expr: str, timeout_s: float = 60.0) -> list[Any]:
        """Wait until an expression has a series."""
        return wait_until(lambda: self.query(expr), timeout_s, f"a value of {expr}")

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health and last error."""
        return [rule for group in self.api("rules")["groups"] for rule in group["rules"]]

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = self.api("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def metric_names(self) -> set[str]:
        """The names of all stored series."""
        return set(self.api("label/__name__/values"))

    def check_dashboard(
        self, dashboard: Mapping[str, Any], began: float, ended: float, *, may_be_empty: Collection[str] = ()
    ) -> list[str]:
        """What is wrong with a Grafana dashboard: an expression that does not parse, or a panel that shows
        nothing between two Unix times and whose title is not in `may_be_empty`; a variable without a value.
        """
        variables = {each["name"]: each for each in dashboard.get("templating", {}).get("list", [])}
        span = {"start": began, "end": ended}
        wrong = []
        for title, target in _targets(dashboard):
            try:
                expr = interpolate(target["expr"], variables)
                found = self.query_range(expr, began, ended)
            except (KeyError, ValueError) as error:
                wrong.append(f"{title}: {error} in {target['expr']}")
                continue
            if not found and title not in may_be_empty:
                wrong.append(f"{title}: no data for {expr}")
        for variable in variables.values():
            asked = variable["query"]["query"] if isinstance(variable["query"], dict) else variable["query"]
            values = re.fullmatch(r"label_values\((?:(.+),\s*)?(\w+)\)", asked)
            if values:
                match = {"match[]": interpolate(values[1], variables)} if values[1] else {}
                if not self.api(f"label/{values[2]}/values", **span, **match):
                    wrong.append(f"${variable['name']}: no values")
        return wrong


class Alertmanager(Server):
    """An Alertmanager with the shipped configuration, whose receivers all are this test; use it with `with`.

    `delivered` has the alerts in the order in which they came, each with the name of its receiver.
    """

    def __init__(self, home: Path) -> None:
        self.delivered: list[dict[str, Any]] = []
        self._hook = ThreadingHTTPServer(("127.0.0.1", 0), _hook(self.delivered))
        threading.Thread(target=self._hook.serve_forever, daemon=True).start()
        config = yaml.safe_load((DEPLOY / "alertmanager.yml").read_text())
        url = f"http://127.0.0.1:{self._hook.server_port}/"
        for receiver in config["receivers"]:
            if len(receiver) > 1:
                config_of_hook = {"url": url, "send_resolved": True}
                receiver.update(email_configs=[], webhook_configs=[config_of_hook])
        for route in (config["route"], *config["route"]["routes"]):
            route.update(group_wait="0s", group_interval="1s")
        home.mkdir(parents=True, exist_ok=True)
        (home / "alertmanager.json").write_text(json.dumps(config))
        where = [f"--config.file={home / 'alertmanager.json'}", f"--storage.path={home / 'data'}"]
        super().__init__(home, "prometheus-alertmanager", *where, "--cluster.listen-address=")
        wait_until(self.is_ready, START_S, "Alertmanager to be ready")

    def __enter__(self) -> Alertmanager:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()
        self._hook.shutdown()
        self._hook.server_close()

    def alerts(self) -> dict[str, str]:
        """The state of each alert by its name: active, suppressed or unprocessed."""
        known = json.loads(self.get("/api/v2/alerts"))
        return {each["labels"]["alertname"]: each["status"]["state"] for each in known}


def node_exporter(home: Path) -> Server:
    """A node_exporter; end it with `end`."""
    return Server(home, "prometheus-node-exporter")


def _hook(delivered: list[dict[str, Any]]) -> type[BaseHTTPRequestHandler]:
    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            delivered.extend({**alert, "receiver": told["receiver"]} for alert in told["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    return Hook


def _some(address: str | None) -> list[str]:
    return [address] if address else []


def _targets(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every target with an expression, with its panel's title; collapsed rows hold panels too."""
    for panel in dashboard.get("panels", []):
        yield from _targets(panel)
        for target in panel.get("targets", []):
            if target.get("expr"):
                yield panel.get("title", ""), target


def interpolate(expr: str, variables: Mapping[str, Any]) -> str:
    """An expression with Grafana's variables filled in, as $v or ${v}; KeyError for an unknown name."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name in BUILT_IN:
            return BUILT_IN[name]
        variable = variables[name]
        current = variable.get("current", {}).get("value")
        if variable.get("includeAll") or variable.get("multi") or current in (None, "", "$__all", ["$__all"]):
            return str(variable.get("allValue") or ".*")
        return "|".join(current) if isinstance(current, list) else str(current)

    return re.sub(r"\$\{(\w+)(?::[^}]*)?\}|\$(\w+)", value, expr)
