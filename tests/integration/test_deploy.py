"""The files of `deploy/`: each can be parsed, and each worker becomes ready, works and stops as written there."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from queuehint import Scheduler
from queuehint.cli import worker
from queuehint.cli.app import app
from queuehint.cli.worker import Options
from queuehint.worker.worker import ABANDON_AFTER_S
from tests.commands import CliRunner
from tests.conftest import StartServer
from tests.prefork import start
from tests.probes import ask, free_port, until
from tests.servers import Server, new_namespace

yaml: Any = pytest.importorskip("yaml")

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")

DEPLOY = Path(__file__).parents[2] / "deploy"
OVER_S = 60.0
APP = """
from queuehint import Scheduler

sched = Scheduler()

@sched.job
async def double(n: int) -> int:
    return 2 * n
"""


def read_yaml(name: str) -> dict[str, Any]:
    [found] = yaml.safe_load_all((DEPLOY / name).read_text())
    assert isinstance(found, dict)
    return found


def compose() -> dict[str, Any]:
    services: dict[str, Any] = read_yaml("compose.yaml")["services"]
    return services


def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read_string((DEPLOY / "queuehint-worker.service").read_text())
    return found


def pod() -> dict[str, Any]:
    found: dict[str, Any] = read_yaml("kubernetes.yaml")["spec"]["template"]["spec"]
    return found


def container() -> dict[str, Any]:
    [found] = pod()["containers"]
    assert isinstance(found, dict)
    return found


@attrs.frozen(kw_only=True)
class Deployed:
    """
    A worker as a file starts it.

    Args:
        command: the program and its arguments.
        environment: what the file sets beside the store.
        patience_s: how long it has to end.
    """

    command: list[str]
    environment: dict[str, str]
    patience_s: float


def by_compose() -> Deployed:
    worker = compose()["worker"]
    assert worker["stop_grace_period"].endswith("s")
    patience_s = float(worker["stop_grace_period"][:-1])
    return Deployed(command=worker["command"], environment=worker["environment"], patience_s=patience_s)


def by_systemd() -> Deployed:
    service = unit()["Service"]
    name, _, value = service["Environment"].partition("=")
    patience_s = float(service["TimeoutStopSec"])
    return Deployed(command=shlex.split(service["ExecStart"]), environment={name: value}, patience_s=patience_s)


def by_kubernetes() -> Deployed:
    found = container()
    environment = {each["name"]: each.get("value", "") for each in found["env"]}
    command = [*found["command"], *found["args"]]
    return Deployed(command=command, environment=environment, patience_s=pod()["terminationGracePeriodSeconds"])


def file_is_fresh(environment: dict[str, str]) -> bool:
    """The probe of the compose file; it takes three processes, so it is asked once there is a file."""
    if not Path(environment["QUEUEHINT_HEALTH_FILE"]).exists():
        return False
    kind, command = compose()["worker"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    done = subprocess.run(
        ["sh", "-c", command.replace("$$", "$")], env=environment, stderr=subprocess.DEVNULL, check=False
    )
    return done.returncode == 0


def port_answers(environment: dict[str, str]) -> bool:
    """The readiness probe of the Deployment."""
    return ask(int(environment["QUEUEHINT_HEALTH_PORT"]))[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "deployed, is_ready",
    [
        (by_compose, file_is_fresh),
        pytest.param(by_systemd, file_is_fresh, marks=pytest.mark.nightly),  # three processes
        (by_kubernetes, port_answers),
    ],
)
def test_a_deployed_worker_gets_ready_works_and_stops(
    deployed: Callable[[], Deployed],
    is_ready: Callable[[dict[str, str]], bool],
    redis_server: Server,
    tmp_path: Path,
) -> None:
    worker = deployed()
    (tmp_path / "myapp").mkdir()
    (tmp_path / "myapp" / "jobs.py").write_text(APP)
    url = f"{redis_server.url}?namespace={new_namespace()}"
    environment = {**os.environ, **worker.environment, "QUEUEHINT_URL": url}
    # Another process on this machine may have the file and the port.
    if "QUEUEHINT_HEALTH_FILE" in environment:
        environment["QUEUEHINT_HEALTH_FILE"] = str(tmp_path / "health")
    if "QUEUEHINT_HEALTH_PORT" in environment:
        environment |= {"QUEUEHINT_HEALTH_PORT": str(free_port()), "QUEUEHINT_HEALTH_HOST": "127.0.0.1"}
    program, *arguments = worker.command
    assert Path(program).name == "queuehint"
    assert not is_ready(environment)
    process = start("queuehint", *arguments, cwd=tmp_path, env=environment)
    sched = Scheduler(url)
    try:
        until(lambda: process.poll() is not None or is_ready(environment), OVER_S)
        assert process.poll() is None

        @sched.job
        def double(n: int) -> int:
            raise AssertionError("this runs in the worker")

        assert double.enqueue_sync(4).result_sync(OVER_S) == 8
        process.send_signal(signal.SIGTERM)
        assert process.wait(OVER_S) == 0
        assert not is_ready(environment)
    finally:
        sched.close_sync()
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.parametrize("deployed", [by_compose, by_systemd, by_kubernetes])
def test_deployment_command_line_is_accepted(deployed: Callable[[], Deployed], monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Options] = []

    def run(options: Options, *_: int) -> int:
        taken.append(options)
        return 0

    monkeypatch.setattr(worker, "_run", run)
    monkeypatch.setattr(worker, "_run_processes", run)
    found = CliRunner().invoke(app, deployed().command[1:], env=deployed().environment)
    assert (found.exit_code, found.stderr) == (0, "")
    [options] = taken
    assert (options.target, options.concurrency) == ("myapp.jobs:sched", 16)
    assert options.health_file is not None or options.health_port is not None


@pytest.mark.parametrize("deployed", [by_compose, by_systemd, by_kubernetes])
def test_a_deployed_worker_has_time_to_end(deployed: Callable[[], Deployed]) -> None:
    worker = deployed()
    grace_s = float(worker.command[worker.command.index("--grace") + 1])
    assert worker.patience_s > grace_s + ABANDON_AFTER_S


def test_redis_of_the_compose_file_passes_the_doctor(start_server: StartServer) -> None:
    program, *options = compose()["redis"]["command"]
    assert program == "redis-server"
    names, values = options[::2], options[1::2]
    assert all(name.startswith("--") for name in names)
    server = start_server(**{name[2:].replace("-", "_"): value for name, value in zip(names, values, strict=True)})
    found = CliRunner().invoke(app, ["doctor", server.url, "--json"])
    told = json.loads(found.stdout)
    assert told["clean"]
    # Of the program itself it may have something to say; of its settings it has not.
    assert [finding for finding in told["findings"] if "maxmemory" in str(finding) or "append" in str(finding)] == []


def test_the_unit_is_one_for_systemd(tmp_path: Path) -> None:
    service = unit()["Service"]
    assert service["KillMode"] == "mixed"
    assert service["Restart"] == "on-failure"
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    program = shlex.split(service["ExecStart"])[0]
    copy = tmp_path / "queuehint-worker.service"
    copy.write_text((DEPLOY / copy.name).read_text().replace(program, "/bin/true"))
    done = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if copy.name in line] == []


def test_probes_of_the_deployment_query_the_worker_port() -> None:
    deployment, found = read_yaml("kubernetes.yaml"), container()
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = {each["name"]: str(each["containerPort"]) for each in found["ports"]}
    environment = by_kubernetes().environment
    assert environment["QUEUEHINT_HEALTH_HOST"] == "0.0.0.0"
    for probe in ("readinessProbe", "livenessProbe"):
        assert ports[found[probe]["httpGet"]["port"]] == environment["QUEUEHINT_HEALTH_PORT"]


def test_the_scaled_object_asks_for_metrics_that_there_are() -> None:
    from prometheus_client import CollectorRegistry

    from queuehint.metrics.prometheus import SchedulerCollector

    scaled = read_yaml("keda.yaml")
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] == read_yaml("kubernetes.yaml")["metadata"]["name"]
    [trigger] = scaled["spec"]["triggers"]
    arguments = container()["args"]
    assert trigger["metadata"]["threshold"] == arguments[arguments.index("--concurrency") + 1]
    sched = Scheduler("memory://")

    @sched.job
    def work() -> None: ...

    work.enqueue_sync()
    registry = CollectorRegistry()
    registry.register(SchedulerCollector(sched))
    asked = re.findall(r"(\w+)\{([^}]*)\}", trigger["metadata"]["query"])
    assert len(asked) == 3
    found = {}
    for name, labels in asked:
        wanted = dict(re.findall(r'(\w+)="(\w+)"', labels))
        found[name] = registry.get_sample_value(name, wanted)
    assert found == {"queuehint_jobs_ready": 1, "queuehint_jobs": 0, "queuehint_up": 1}
