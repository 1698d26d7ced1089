"""The function library: code that runs at load and at every call, and the fallback to plain scripts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis import exceptions as driver

from queuehint.backends.base import release
from queuehint.backends.redis import scripts
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.functions import library as functions
from queuehint.backends.redis.functions.calls import LOADS_MAX, PASSING_AGAIN_S, REFUSED_AGAIN_S, Call, Calls
from queuehint.backends.redis.functions.library import Library, library
from queuehint.backends.redis.functions.statements import statements, values
from queuehint.backends.redis.transport import Send
from tests.calls import script_of
from tests.each import for_each
from tests.servers import Server

# --- statements ------------------------------------------------------------------------------------------------------


def split(text: str) -> list[str]:
    return [statement.text for statement in statements(text.split("\n"))]


@for_each(
    "text",
    [
        "local a, b = {}, 'end'",
        "local a = b\nor c",
        "local a = {\n1,\n}",
        "local function f(a)\nif a then return 1 end\nreturn {function() end}\nend",
        "function f.g(a) return a end",
        "for at = 1, 2 do\nwhile true do break end\nend",
        "repeat\nlocal a = f(function() end)\nuntil a",
        "do\nlocal a = 1\nend",
        "if a then\nb = 1\nelseif c then b = 2 else b = 3 end",
        "a.b = c",
    ],
)
def test_a_statement_ends_where_its_last_line_does(text: str) -> None:
    assert split(f"local first = 1\n{text}\nlast()") == ["local first = 1", text, "last()"]


def test_a_statement_that_does_not_end_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^lua statement does not end: 'if a then'$"):
        split("local b\nif a then\nb = 1")


def test_the_values_of_a_list_are_told_apart() -> None:
    assert values("{1, 2}, f(a, b), ',', function() return 1, 2 end") == [
        "{1, 2}", "f(a, b)", "','", "function() return 1, 2 end",
    ]  # fmt: skip


# --- what is kept from call to call ----------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Library]:
    """Make a library of a test's own files: those of operations by name, those they include as `lib_…`."""
    folder = tmp_path / "lua"
    (folder / "lib").mkdir(parents=True)
    (folder / "doctor").mkdir()
    monkeypatch.setattr(scripts, "files", lambda _: tmp_path)

    def make(**texts: str) -> Library:
        for name, text in texts.items():
            path = folder / "lib" / f"{name[4:]}.lua" if name.startswith("lib_") else folder / f"{name}.lua"
            path.write_text(text)
        return Library()

    return make


class Twice:
    """A server that has a library."""

    def __init__(self, client: Redis, made: Library) -> None:
        self._client, self._library = client, made
        client.function_load(made.text, replace=True)

    def __call__(self, name: str, *args: object) -> Any:
        return self._client.execute_command("FCALL", self._library.function(name), 0, *args)  # type: ignore[no-untyped-call]


@pytest.fixture
def loaded(redis_server: Server, files: Callable[..., Library]) -> Iterator[Callable[..., Twice]]:
    made: list[Library] = []

    def load(**texts: str) -> Twice:
        new = files(**texts)
        call = Twice(redis_server.client(), new)
        made.append(new)
        return call

    yield load
    for each in made:
        redis_server.call("FUNCTION", "DELETE", each.name)


STATE = """
-- @include lib/state
-- @include lib/table
local own = {}
local function grow()
  own[#own + 1], seen[#seen + 1], counts.list[#counts.list + 1] = 1, 1, 1
  counts.later = (counts.later or 0) + 1
  if ARGV[1] == 'fail' then error('in the middle', 0) end
end
do local unseen = 1 end
grow()
kept = kept + 1
TIMES[1] = (TIMES[1] or 0) + 1
return {TIMES[1], #own, #seen, #counts.list, counts.later, counts.first, inner(), LETTERS.a, kept}
"""
LIB_STATE = """
local seen = {}
local LETTERS = {a = 7}
local TIMES = {}
local kept = 0 -- @once
"""
LIB_TABLE = """
local counts = {list = {}, first = 3}
function counts.of() return #seen end
local inner
do
local depth = 0
function counts.deeper()
  depth = depth + 1
  return depth
end
end
inner = function() counts.first = counts.first + 1 return counts.deeper() end
"""


def test_each_call_starts_fresh_also_after_an_error(loaded: Callable[..., Twice]) -> None:
    call = loaded(grow="#!lua\n" + STATE, lib_state=LIB_STATE, lib_table=LIB_TABLE)
    assert call("grow", "") == [1, 1, 1, 1, 1, 3, 1, 7, 1]
    assert call("grow", "") == [1, 1, 1, 1, 1, 3, 1, 7, 2], "but for what is marked"
    with pytest.raises(driver.ResponseError, match="in the middle"):
        call("grow", "fail")
    assert call("grow", "") == [1, 1, 1, 1, 1, 3, 1, 7, 3]


def test_functions_and_constants_are_made_once(files: Callable[..., Library]) -> None:
    text = files(grow="#!lua\n" + STATE, lib_state=LIB_STATE, lib_table=LIB_TABLE).text
    made, _, begins = text.partition("BEGIN[1] = function()")
    assert "local LETTERS = {a = 7}\n" in made
    assert "local kept = 0\n" in made
    assert "\nif next(seen) then seen = {} end\n" in begins
    assert "\nif next(counts.list) then counts.list = {} end\n" in begins, "an empty table is kept"
    assert "function counts.of()" in begins.partition("counts.first, counts.later = 3, nil\n")[0]


def test_a_file_may_end_a_call_before_the_operation_begins(loaded: Callable[..., Twice]) -> None:
    early = "if ARGV[1] == 'early' then\n  return {'early'}\nend\n"
    call = loaded(go="#!lua\n-- @include lib/early\nreturn {'late'}\n", lib_early=early)
    assert call("go", "early") == [b"early"]
    assert call("go", "") == [b"late"]


def test_function_runs_only_its_own_files(loaded: Callable[..., Twice]) -> None:
    call = loaded(
        one="#!lua\n-- @include lib/a\nreturn {a}\n",
        two="#!lua flags=no-writes\n-- @include lib/a\n-- @include lib/b\nreturn {a, b}\n",
        lib_a="local a = 1\n",
        lib_b="error('begun', 0)\nlocal b = 2\n",
    )
    assert call("one") == [1]
    with pytest.raises(driver.ResponseError, match="begun"):
        call("two")


@pytest.mark.parametrize(
    "texts, problem",
    [
        ({"lib_a": "local a = 1\n", "lib_b": "local a = 2\n"}, "lua local a in lib/b hides another one"),
        ({"lib_a": "local t = {}\nfunction t.f() end\nt[1] = 2\n"}, "lua table of functions t is written to by other"),
        ({"lib_a": "local t = f()\nfunction t.f() end\n"}, "lua table of functions t is f()"),
        ({"lib_a": "local string = 1\n"}, "lua local string in lib/a hides another one"),
        (
            {"lib_a": "local a = N\n", "lib_b": "local N = 1 -- @const\n", "other": "local N = 2 -- @const\n"},
            "lua file lib/a has constants of several values",
        ),
    ],
)
def test_malformed_library_raises_an_error(files: Callable[..., Library], texts: dict[str, str], problem: str) -> None:
    includes = "".join(f"-- @include lib/{name}\n" for name in "ab" if f"lib_{name}" in texts)
    texts = {"lib_b": "", "one": f"#!lua\n{includes}return 1\n"} | texts
    if "other" in texts:
        texts["other"] = f"#!lua\n-- @include lib/a\n{texts['other']}return 1\n"
    with pytest.raises(ValueError, match=re.escape(problem)):
        files(**texts).text  # noqa: B018


def test_files_that_are_included_in_several_orders_are_an_error(files: Callable[..., Library]) -> None:
    made = files(
        one="#!lua\n-- @include lib/a\n-- @include lib/b\nreturn 1\n",
        two="#!lua\n-- @include lib/b\n-- @include lib/a\nreturn 1\n",
        lib_a="local a = 1\n",
        lib_b="local b = 1\n",
    )
    with pytest.raises(ValueError, match="several orders"):
        made.text  # noqa: B018


def test_nothing_of_a_store_is_kept_from_call_to_call() -> None:
    marked = {
        (name, line)
        for name in scripts.files_of_operations()
        for line in re.findall(r"^(.*) -- @once$", scripts.source(name), re.MULTILINE)
    }
    assert marked == {
        ("lib/request/keys", "local ROOT = ''"),  # of the names of keys
        ("lib/request/state", "local own_run = false"),  # the server's, which has another one when it starts anew
        # Parsed texts, which are the same in every call.
        ("lib/request/arguments", "local numbers_known, numbers_count = {}, 0"),
        ("lib/request/session", "local services_known = {}"),
        ("lib/jobs/fields", "local claims_parsed, claims_count, claims_bytes = {}, 0, 0"),
        ("lib/jobs/fields", "local policies, policies_count = {[''] = DEFAULT_POLICY}, 0"),
        ("lib/request/asked", "local common_known, common_count = {}, 0"),
        ("lib/request/asked", "local last_text, last_common = '', false"),
        ("lib/formats/head_format", "local UNSAID = {"),
        ("lib/formats/head_format", "local facts_known, facts_count = {}, 0"),
        # What heads of the namespace of the last call name: an id is made of the text that it stands for.
        ("lib/formats/head_format", "local named_known, named_count = {}, 0"),
        ("lib/formats/head_format", "local common_parts, common_parts_count = {}, 0"),
        ("lib/formats/head_format", "local named_in = ''"),
    }


# --- names -----------------------------------------------------------------------------------------------------------


def test_library_name_depends_on_release_and_content(
    files: Callable[..., Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = files(go="#!lua\nreturn 1\n")
    version = re.sub(r"\W", "_", release())
    assert re.fullmatch(rf"queuehint_{version}_[0-9a-f]{{16}}", one.name)
    assert one.function("go") == f"qh_{one.digest}_go"
    assert files(go="#!lua\nreturn 1\n").name == one.name
    other = files(go="#!lua\nreturn 2\n")
    assert other.digest != one.digest
    monkeypatch.setattr(functions, "release", lambda: "0.2.0+dev-1")
    assert files(go="#!lua\nreturn 2\n").name.startswith("queuehint_0_2_0_dev_1_")
    assert files(go="#!lua\nreturn 2\n").digest != other.digest


def test_every_script_except_the_doctor_is_a_function(redis_server: Server) -> None:
    redis_server.call("FUNCTION", "LOAD", "REPLACE", library().text)
    reply = redis_server.client().function_list(library=library().name)
    found: Any = dict(zip(reply[0][::2], reply[0][1::2], strict=True))
    flags = {function[1].decode(): {flag.decode() for flag in function[5]} for function in found[b"functions"]}
    assert flags == {
        library().function(name): set(scripts.flags_of(scripts.source(name)))
        for name in scripts.names()
        if scripts.script(name).is_function
    }
    assert {name for name in scripts.names() if not scripts.script(name).is_function} == {
        name for name in scripts.names() if name.startswith("doctor/")
    }


def test_the_library_loads_on_valkey(second_server: Server) -> None:
    assert second_server.call("FUNCTION", "LOAD", "REPLACE", library().text) == library().name.encode()


# --- with functions and without --------------------------------------------------------------------------------------

MISSING = driver.ResponseError("Function not found")
TICK, GET = scripts.script("tick"), scripts.script("get")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def calls_of(functions: str = "auto") -> Calls:
    return Calls(parse_url(f"redis://db?functions={functions}"))


def way_of(call: Call | Send) -> str:
    return str((call.first() if isinstance(call, Call) else call).command[0])


def load_of(call: Call) -> Send:
    """Let a server not know the function, and return what is sent then."""
    load = call.instead(call.first(), MISSING)
    assert load is not None
    return load


def test_functions_take_the_same_arguments_as_scripts() -> None:
    for which, way in ((TICK, "FCALL"), (GET, "FCALL_RO")):
        assert Call(calls_of(), which, (1, "k", "a")).first().command == (
            way,
            library().function(which.name),
            1,
            "k",
            "a",
        )


def test_node_without_the_library_is_sent_it_and_asked_again() -> None:
    call = Call(calls_of(), TICK, (0,))
    load = load_of(call)
    assert load.command == ("FUNCTION", "LOAD", library().text)
    assert call.load is load
    again = call.instead(load, driver.ResponseError(f"Library '{library().name}' already exists"))
    assert again is not None
    assert again.command == call.first().command
    assert way_of(call) == "FCALL"


def test_the_scripts_of_the_doctor_are_never_functions() -> None:
    call = Call(calls_of("always"), scripts.script("doctor/counters"), (0,))
    assert way_of(call) == "EVALSHA"
    whole = call.instead(call.first(), driver.NoScriptError("No matching script."))
    assert whole is not None
    assert whole.command == ("EVAL", scripts.script("doctor/counters").text, 0)


DENIED = [
    driver.NoPermissionError("this user has no permissions to run the 'fcall' command"),
    driver.NoPermissionError("User app has no permissions to run the 'fcall_ro' command"),
    driver.ResponseError("unknown command 'FCALL', with args beginning with: "),
]
LOAD_REFUSED = [
    driver.NoPermissionError("this user has no permissions to run the 'function|load' command"),
    driver.ResponseError("unknown command 'FUNCTION', with args beginning with: 'LOAD'"),
    driver.ResponseError("ERR Error compiling function"),
]
FULL = [
    driver.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
    driver.ResponseError("MISCONF Redis is configured to save RDB snapshots"),
]


@pytest.mark.parametrize("error, is_load, again_s", [
    *((error, False, REFUSED_AGAIN_S) for error in DENIED),
    *((error, True, REFUSED_AGAIN_S) for error in LOAD_REFUSED),
    *((error, True, PASSING_AGAIN_S) for error in FULL),
])  # fmt: skip
def test_refused_functions_fall_back_to_scripts_for_a_while(
    error: driver.ResponseError, is_load: bool, again_s: float, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    known = calls_of()
    call = Call(known, TICK, (1, "k"))
    sent = load_of(call) if is_load else call.first()
    instead = call.instead(sent, error)
    assert instead is not None
    assert instead.command == ("EVALSHA", TICK.sha, 1, "k")
    assert way_of(Call(known, GET, (0,))) == "EVALSHA"
    clock[0] += again_s - 1
    assert way_of(Call(known, TICK, (0,))) == "EVALSHA"
    clock[0] += 1
    assert way_of(Call(known, TICK, (0,))) == "FCALL"
    (said,) = [record for record in caplog.records if getattr(record, "event", None) == "redis.functions_refused"]
    assert "hunter2" not in said.getMessage()


@pytest.mark.parametrize("error", [
    driver.ResponseError("BUSY Redis is busy running a script."),
    driver.ReadOnlyError("You can't write against a read only replica."),
    driver.MovedError("1 b:1"),
    driver.ResponseError("LOADING Redis is loading the dataset in memory"),
])  # fmt: skip
def test_load_refused_by_a_transient_state_is_retried(error: driver.ResponseError) -> None:
    known = calls_of()
    call = Call(known, TICK, (0,))
    assert call.instead(load_of(call), error) is None
    assert way_of(Call(known, TICK, (0,))) == "FCALL"


def test_library_that_is_never_found_is_loaded_few_times() -> None:
    known = calls_of()
    call = Call(known, TICK, (0,))
    for _ in range(LOADS_MAX):
        load_of(call)
    assert way_of(load_of(call)) == "EVALSHA"


@pytest.mark.parametrize("error", [*DENIED, *LOAD_REFUSED, *FULL])
def test_functions_always_reports_their_absence(error: driver.ResponseError) -> None:
    call = Call(calls_of("always"), TICK, (0,))
    assert call.instead(call.first() if error in DENIED else load_of(call), error) is None
    assert way_of(call) == "FCALL"


def test_functions_never_uses_scripts(clock: list[float]) -> None:
    known = calls_of("never")
    clock[0] += 1e9
    assert way_of(Call(known, TICK, (0,))) == "EVALSHA"


@pytest.mark.parametrize("error", [
    driver.ResponseError("BAD_ARGUMENT 9 script: qh_x_tick, on @user_function:46."),
    driver.NoPermissionError("this user has no permissions to access one of the keys used as arguments"),
    driver.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
    driver.NoScriptError("No matching script."),
])  # fmt: skip
def test_other_refusals_are_answers(error: driver.ResponseError) -> None:
    known = calls_of()
    call = Call(known, TICK, (0,))
    assert call.instead(call.first(), error) is None
    assert script_of(call.first().command) == "tick"
    assert functions.library() is library()
