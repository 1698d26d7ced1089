"""The Lua scripts: headers that match their callers, assembly from libraries, and forbidden commands."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

import pytest
from redis.exceptions import ResponseError

import queuehint
from queuehint import operations
from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import keys, scripts
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.codec import codec
from queuehint.backends.redis.codec.replies import REPLIES
from queuehint.backends.redis.codec.requests import REQUESTS
from queuehint.backends.redis.functions.library import library
from queuehint.backends.redis.session import Session
from queuehint.backends.redis.transport import Send
from queuehint.core.engine import ROOMS
from queuehint.core.jobs.states import MOVES
from queuehint.core.state import HANDLERS
from queuehint.values.hint import Claim
from queuehint.values.spec import JobSpec
from tests.calls import load, script_of
from tests.each import for_each
from tests.examples import example
from tests.servers import Server

PACKAGE = Path(queuehint.__file__).parent
LUA = PACKAGE / "backends" / "redis" / "lua"
LIBRARY = sorted(path for path in LUA.rglob("*.lua") if "lib" in path.relative_to(LUA).parts)
FILES = sorted(set(LUA.rglob("*.lua")) - set(LIBRARY))


def name_of(path: Path) -> str:
    """Return the name by which a file of Lua is included or loaded."""
    return path.relative_to(LUA).with_suffix("").as_posix()


SOURCES = {name_of(path): path.read_text("utf-8") for path in FILES}
ALL = {f"{name_of(path)}.lua": path.read_text("utf-8") for path in (*FILES, *LIBRARY)}

EXAMPLES = {REQUESTS[kind][0]: example(kind) for kind in op.KINDS}
# Scripts without an operation, with their own arguments: of a backend, and of its doctor.
MORE_EXAMPLES: dict[str, tuple[Any, ...]] = {
    "spec": ("a",),
    "watch": ("session", "", "a", 1),
    "unwatch": ("session", "a"),
    "doctor/counters": (),
    "doctor/entries": ("jobs", "hash", "0", 10, "a"),
    "doctor/heads": ("a",),
    "doctor/kinds": (0, "meta"),
    "doctor/small_keys": ("zset", 10, "line:a"),
    "doctor/repair": ("", "kind", "name", "item"),
    "doctor/turn_back": (),
    "types": ("meta", "jobs"),
    "probe": (),
    "retain": ("1 2 3 4", 1),
}
QUESTIONS = {name for name, operation in EXAMPLES.items() if operation.is_question}
QUESTIONS |= {"spec", "doctor/counters", "doctor/entries", "doctor/heads", "doctor/kinds", "doctor/small_keys", "types"}
# The doctor looks at all there is, some at a time.
DOCTOR = {name for name in ALL if name.startswith("doctor/")} - {"doctor/turn_back.lua"}


COMMON = 8
"""How many arguments all scripts have in common."""


@functools.cache
def code_of(text: str) -> str:
    """Return a Lua text without its comments."""
    return re.sub(r"--\[\[.*?\]\]|--[^\n]*|('(?:\\.|[^'\\])*')", lambda found: found[1] or "", text, flags=re.DOTALL)


def literals_of(text: str) -> list[str]:
    """Return the strings in a Lua text."""
    return re.findall(r"'((?:\\.|[^'\\])*)'", code_of(text))


def header_of(name: str) -> str:
    found = re.match(r"#!lua[^\n]*\n--\[\[ (.*?)\]\]\n", SOURCES[name], re.DOTALL)
    assert found, f"{name}.lua does not begin with a header"
    return found[1]


def arguments_described(header: str) -> tuple[set[int], int | None]:
    """Return which of ARGV a header describes, and from where on any number, if so."""
    described: set[int] = set()
    rest = None
    for first, dots, last in re.findall(r"ARGV\[(\d+)(\.\.)?(\d*)\]", header):
        if dots and not last:
            rest = int(first)
        described |= set(range(int(first), int(last or first) + 1))
    return described, rest


def arguments_sent(name: str) -> int:
    """Return how many of ARGV a backend sends in the example."""
    session = Session(parse_url("redis://localhost"), BackendOptions())
    session._checked_s = float("inf")
    session._may_write = True
    if name in EXAMPLES:
        ask = next(session.execute(EXAMPLES[name]))
    else:
        ask = next(session.execute_script(name, MORE_EXAMPLES[name]))
    assert isinstance(ask, Send)
    assert script_of(ask.command) == name
    return len(ask.command[3 + ask.command[2] :])


# --- headers ---------------------------------------------------------------------------------------------------------


def test_there_is_an_example_of_every_script() -> None:
    assert EXAMPLES.keys() | MORE_EXAMPLES.keys() == SOURCES.keys() == set(scripts.names())
    assert all(codec.encode(operation)[0] == name for name, operation in EXAMPLES.items())
    assert {type(operation) for operation in EXAMPLES.values()} == set(op.KINDS) == set(REQUESTS) == set(REPLIES)


def test_common_arguments_are_documented_once() -> None:
    common = ALL["lib/request/arguments.lua"].partition("]]")[0]
    assert "\n  KEYS[1] root " in common
    assert re.findall(r"KEYS\[(\d+)", common) == ["1", "2"]
    assert arguments_described(common) == ({*range(1, COMMON + 1), COMMON + 1}, None)
    assert arguments_sent("tick") == COMMON


@for_each("name", SOURCES)
def test_script_header_begins_with_its_file_name_and_names_returns(name: str) -> None:
    header = header_of(name)
    assert header.startswith(f"{Path(name).name}: ")
    assert "\n  Returns " in header
    assert "KEYS[" not in header


@for_each("name", EXAMPLES)
def test_header_names_the_core_module_of_its_operation(name: str) -> None:
    (named,) = re.findall(r"\n  Mirrors core\.([\w.]+)", header_of(name))
    handler = HANDLERS[type(EXAMPLES[name])]
    (room,) = [room for room in ROOMS if room.__name__ == f"queuehint.core.{named}"]
    assert getattr(room, handler.__name__) is handler


@for_each("name", SOURCES)
def test_header_describes_exactly_the_arguments_of_its_caller(name: str) -> None:
    described, rest = arguments_described(header_of(name))
    sent = arguments_sent(name)
    last = max(described, default=COMMON)
    assert described == set(range(COMMON + 1, last + 1)), "an argument is left out"
    assert rest in {None, last}, "what is repeated comes last"
    assert sent == last if rest is None else sent >= last


@for_each("name", SOURCES)
def test_script_reads_only_arguments_of_its_header(name: str) -> None:
    described, _ = arguments_described(header_of(name))
    code = code_of(scripts.script(name).text)
    read = {int(number) for number in re.findall(r"(?:ARGV\[|args\.(?:int|int_or_none|flag)\()(\d+)", code)}
    assert read <= {*range(1, COMMON + 1)} | described


@for_each("name", SOURCES)
def test_only_adding_scripts_are_refused_when_memory_is_full(name: str) -> None:
    shebang = SOURCES[name].partition("\n")[0]
    if name in QUESTIONS:
        assert shebang == "#!lua flags=no-writes,allow-oom"
    else:
        adds = {"enqueue", "depend", "push", "put_schedule", "amend"}
        assert shebang == ("#!lua" if name in adds else "#!lua flags=allow-oom")
    assert scripts.script(name).text.startswith(f"{shebang}\n")


@for_each("path", LIBRARY)
def test_library_file_documents_its_purpose(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.startswith(f"--[[ {path.stem}: ") or not code_of(text).strip(), "it holds more than includes"


# --- how they are put together ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of library files of the test's own."""
    (tmp_path / "lua" / "lib" / "room").mkdir(parents=True)
    monkeypatch.setattr(scripts, "files", lambda _: tmp_path)
    return tmp_path / "lua" / "lib"


def test_include_stands_only_at_its_first_use(folder: Path) -> None:
    (folder / "a.lua").write_text("-- @include lib/room/b\nlocal a = 1\n")
    (folder / "room" / "b.lua").write_text("local b = 2\n")
    text = scripts.assemble("#!lua\n-- @include lib/a\n-- @include lib/room/b\n-- @include lib/a\nreturn a + b\n")
    assert text == "#!lua\nlocal b = 2\nlocal a = 1\nreturn a + b"


def test_an_include_that_includes_itself_is_refused(folder: Path) -> None:
    (folder / "a.lua").write_text("-- @include lib/b\n")
    (folder / "b.lua").write_text("-- @include lib/c\n")
    (folder / "c.lua").write_text("-- @include lib/a\n")
    with pytest.raises(ValueError, match=r"^lua include lib/a includes itself: lib/a in lib/c in lib/b in lib/a$"):
        scripts.assemble("#!lua\n-- @include lib/a\n")
    (folder / "self.lua").write_text("-- @include lib/self\n")
    with pytest.raises(ValueError, match="includes itself"):
        scripts.assemble("#!lua\n-- @include lib/self\n")


def test_an_include_that_is_not_there_is_an_error(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        scripts.assemble("#!lua\n-- @include lib/nowhere\n")


@pytest.mark.parametrize("line", ["-- @include ../a", "-- @include /a", "-- @include lib//a", "-- @include lib/a.lua"])
def test_include_accepts_only_paths_in_the_scripts_folder(line: str, folder: Path) -> None:
    (folder / "a.lua").write_text("local a = 1\n")
    assert scripts.assemble(f"#!lua\n{line}\nreturn 1\n") == "#!lua\nreturn 1"


@pytest.mark.slow
@for_each("name", SOURCES)
def test_each_library_file_is_in_a_script_once_at_most(name: str) -> None:
    text = with_includes(name)
    for path in LIBRARY:
        assert text.count(f"--[[ {path.stem}: ") <= 1
    assert "@include" not in text
    assert "@const" not in scripts.script(name).text


def test_every_library_file_is_used() -> None:
    included = {name for text in ALL.values() for name in re.findall(r"^-- @include ([\w/]+)$", text, re.MULTILINE)}
    assert included == {name_of(path) for path in LIBRARY} | {"lib/jobs/moves", "lib/jobs/policies"}


def test_constants_are_written_in_place_of_their_names() -> None:
    text = scripts.assemble("#!lua\nlocal ONE, WORD = 1, 'word' -- @const\nlocal FREE = 2\nreturn {ONE, WORD, FREE}\n")
    assert text == "#!lua\nlocal FREE = 2\nreturn {1, 'word', FREE}"


def test_constant_is_usable_in_an_earlier_include(folder: Path) -> None:
    (folder / "a.lua").write_text("local function one() return ONE end\n")
    text = scripts.assemble("#!lua\n-- @include lib/a\nlocal ONE = 1 -- @const\nreturn one()\n")
    assert text == "#!lua\nlocal function one() return 1 end\nreturn one()"


def test_constant_name_is_kept_in_strings_and_longer_names() -> None:
    body = r"""
local ONE = 1 -- @const
local ONES, BONE, one = 'ONE', 'it\'s ONE', '-- ONE' -- ONE
--[[ ONE
ONE ]]
return ONE + #ONES
"""
    text = scripts.assemble(f"#!lua{body}")
    assert text == "#!lua\n" + r"local ONES, BONE, one = 'ONE', 'it\'s ONE', '-- ONE'" + "\nreturn 1 + #ONES"


@pytest.mark.slow
def test_a_constant_has_one_value_in_all_of_a_script() -> None:
    found: dict[str, set[str]] = {}
    for text in ALL.values():
        for names, values in re.findall(r"^local ([\w, ]+) = (.+?) -- @const$", text, re.MULTILINE):
            for name, value in zip(names.split(", "), values.split(", "), strict=True):
                found.setdefault(name, set()).add(value)
    assert len(found) > 20
    several = {name: values for name, values in found.items() if len(values) > 1}
    for name in several:
        for script_name in SOURCES:
            text = with_includes(script_name)
            assert len(set(re.findall(rf"\b{name}\b(?=[\w, ]* = .* -- @const)", text))) <= 1, f"{name} in {script_name}"


def test_questions_about_records_look_as_far_as_in_the_core() -> None:
    names = "PER_BLOCK, BLOCKS_MAX, LOOKED_AT_MAX, COUNTED_MAX, BLOCK_COUNTS_AS"
    found = re.search(rf"^local {names} = (.*) -- @const$", ALL["lib/asking/filter.lua"], re.MULTILINE)
    assert found
    assert [int(number) for number in found[1].split(", ")] == [
        operations.RECORDS_PER_BLOCK,
        operations.BLOCKS_LOOKED_AT_MAX,
        operations.RECORDS_LOOKED_AT_MAX,
        operations.RECORDS_COUNTED_MAX,
        operations.BLOCK_COUNTS_AS,
    ]


@functools.cache
def with_includes(name: str) -> str:
    """Return a script with its includes and its comments."""
    return scripts.included(SOURCES[name].partition("\n")[2])


LUA_WORDS = """
    and break do else elseif end false for function if in local nil not or repeat return then true until while
    KEYS ARGV redis cmsgpack bit struct math string table error getmetatable ipairs next pairs pcall rawget rawset
    select setmetatable tonumber tostring type unpack
"""


OF_CHANGES = {"work", "ready_queue", "paths"}
"""Libraries that questions do not include: code of gates and limits uses them only in functions that change data."""


@pytest.mark.slow
@for_each("name", SOURCES)
def test_script_uses_only_names_of_itself_or_its_includes(name: str) -> None:
    """An undefined name is an error only when its line runs."""
    code = re.sub(r"'(?:\\.|[^'\\])*'", "''", code_of(scripts.script(name).text.partition("\n")[2]))
    defined = set(LUA_WORDS.split())
    for names in re.findall(r"\blocal (?:function )?(\w+(?:, ?\w+)*)|\bfor (\w+(?:, ?\w+)*)", code):
        defined.update(re.findall(r"\w+", " ".join(names)))
    for names in re.findall(r"\bfunction ?[\w.]*\(([\w, ]*)\)", code):
        defined.update(re.findall(r"\w+", names))
    used = set(re.findall(r"(?<![\w.])(?:(?<=\.\.)|(?<!\.))([A-Za-z_]\w*)\b(?! *=[^=])", code))
    used |= set(re.findall(r"\.\. ?([A-Za-z_]\w*)", code))
    assert used - defined <= (OF_CHANGES if name in QUESTIONS else set())


@for_each("name", ALL)
def test_strings_are_written_distinct_from_constants(name: str) -> None:
    code = re.sub(r"'(?:\\.|[^'\\])*'", "''", code_of(ALL[name]))
    assert '"' not in code
    assert "[[" not in code


@pytest.mark.slow
@for_each("name", SOURCES)
def test_no_field_has_the_name_of_a_constant(name: str) -> None:
    text = with_includes(name)
    constants = {
        each
        for line in re.findall(r"^local ([\w, ]+) = .+? -- @const$", text, re.MULTILINE)
        for each in line.split(", ")
    }
    code = re.sub(r"'(?:\\.|[^'\\])*'", "''", code_of(text))
    fields = set(re.findall(r"(?<!\.)\.([A-Za-z_]\w*)", code))
    for table in re.findall(r"\{([^{}]*)\}", code):
        fields |= set(re.findall(r"(?:^|,)\s*([A-Za-z_]\w*) = ", table))
    assert not fields & constants, fields & constants


def test_lua_moves_equal_the_core_moves() -> None:
    rows = dict(re.findall(r"(\w) = '(\w*)'", scripts._moves()))
    assert {
        scripts.STATES[state]: [scripts.STATES[target] for target in targets] for state, targets in rows.items()
    } == {state: list(targets) for state, targets in MOVES.items() if state is not None}


# --- on a server -----------------------------------------------------------------------------------------------------


@for_each("name", SOURCES)
def test_every_script_loads_and_is_known_by_its_sha(name: str, redis_server: Server) -> None:
    script = scripts.script(name)
    assert redis_server.call("SCRIPT", "LOAD", script.text) in {script.sha, script.sha.encode()}


@for_each("name", SOURCES)
def test_every_script_loads_on_valkey(name: str, second_server: Server) -> None:
    script = scripts.script(name)
    assert second_server.call("SCRIPT", "LOAD", script.text) in {script.sha, script.sha.encode()}


@for_each("name", sorted(QUESTIONS))
def test_a_question_runs_where_nothing_may_be_written(name: str, redis_server: Server, namespace: str) -> None:
    session = Session(parse_url(redis_server.url), BackendOptions(namespace=namespace))
    session._checked_s = float("inf")
    session._may_write = True
    talk = session.execute(EXAMPLES[name]) if name in EXAMPLES else session.execute_script(name, MORE_EXAMPLES[name])
    ask = next(talk)
    assert isinstance(ask, Send)
    redis_server.call("EVAL_RO", scripts.script(name).text, *ask.command[2:])
    if scripts.script(name).is_function:
        load(redis_server)
        redis_server.call("FCALL_RO", library().function(name), *ask.command[2:])
    assert not redis_server.client().exists(keys.redis_key(namespace, "meta"))


@for_each("name", sorted(SOURCES.keys() - QUESTIONS))
def test_mutating_script_is_refused_in_a_read_only_call(name: str, redis_server: Server) -> None:
    with pytest.raises(ResponseError, match=r"(?i)write"):
        redis_server.call("EVAL_RO", scripts.script(name).text, 1, "{qh:nobody}", "", "", 0)
    if scripts.script(name).is_function:
        load(redis_server)
        with pytest.raises(ResponseError, match=r"(?i)write"):
            redis_server.call("FCALL_RO", library().function(name), 1, "{qh:nobody}", "", "", 0)


@for_each("name", ALL)
def test_keys_are_made_in_one_file_and_begin_with_root(name: str) -> None:
    found = re.findall(r"\b(?:KEYS|ROOT)\b.*", code_of(ALL[name]))
    if name == "probe.lua":
        assert found == ["KEYS[1] .. ':probe'"]  # which it removes itself
    elif name == "lib/request/keys.lua":
        found = [line.rstrip() for line in found]
        assert found[:3] == ["ROOT = ''", "ROOT .. name", "ROOT ~= KEYS[1] .. ':' then"]
        assert found[3] == "ROOT = KEYS[1] .. ':'"
        assert all(line.startswith("ROOT .. ") for line in found[4:])
    else:
        assert not found


# --- keys ------------------------------------------------------------------------------------------------------------


def keys_in_lua() -> tuple[set[str], set[str]]:
    """Return the names of the keys that scripts use, and the prefixes that `lib/keys` makes keys of."""
    made = re.findall(r"function store\.(\w+)\(\w+\) return ROOT \.\. '([^']+)'", ALL["lib/request/keys.lua"])
    used: set[str] = set()
    for text in ALL.values():
        code = code_of(text)
        used |= set(re.findall(r"\bstore\.(\w+)", code)) | set(re.findall(r"\bstore\['([^']+)'\]", code))
    functions = {function for function, _ in made}
    assert functions <= used
    return used - functions, {prefix for _, prefix in made}


def test_lua_and_python_know_the_same_keys() -> None:
    fixed, prefixes = keys_in_lua()
    assert fixed == {key.name for key in keys.KEYS if not key.is_prefix}
    assert prefixes == {key.name for key in keys.KEYS if key.is_prefix}


def test_key_is_a_prefix_exactly_if_it_ends_with_colon() -> None:
    assert all(key.is_prefix == key.name.endswith(":") for key in keys.KEYS)
    assert {key.type for key in keys.KEYS} <= {"hash", "set", "zset", "list"}


def test_no_name_of_a_key_begins_like_a_prefix() -> None:
    prefixes = [key.name for key in keys.KEYS if key.is_prefix]
    for key in keys.KEYS:
        assert [prefix for prefix in prefixes if key.name.startswith(prefix)] in ([], [key.name])


def test_a_key_of_a_namespace_begins_with_its_hash_tag() -> None:
    assert keys.root("a.b") == "{qh:a.b}"
    assert keys.redis_key("a.b", "line:", "x:y") == "{qh:a.b}:line:x:y"
    assert keys.redis_key("a.b", "meta") == "{qh:a.b}:meta"


# --- what scripts must not do ----------------------------------------------------------------------------------------

COMMANDS = """
    EXISTS HDEL HEXISTS HGET HGETALL HKEYS HLEN HMGET HSET HVALS INFO LLEN LRANGE LTRIM RPUSH SADD SCARD SISMEMBER
    SREM TIME TYPE UNLINK ZADD ZCARD ZLEXCOUNT ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZREM ZREMRANGEBYSCORE
    ZREVRANGEBYLEX ZSCORE
"""
OF_THE_DOCTOR = "HSCAN ZSCAN SSCAN PTTL PERSIST LREM"
# Reads whose size no argument limits, by what they read, and what limits it.
WHOLE = {
    ("HGETALL", "pools"): "pools with ready jobs",
    ("HGETALL", "facts"): "256 facts",
    ("HGETALL", "weights"): "1 000 users with a weight",
    ("HVALS", "pauses"): "10 000 pauses",
    ("HGETALL", "pauses"): "10 000 pauses",
    ("HGETALL", "selections"): "100 pauses by filter",
    ("HGETALL", "limits"): "1 000 limits",
    ("HGETALL", "workers"): "1 000 workers, and those silent for long until the next new one",
    ("HGETALL", "gauges"): "places of one limit that have jobs which run or were parked, or spent tokens",
    ("HVALS", "gauges"): "the same",
    ("HKEYS", "gauges"): "the same, after a clock that was ahead",
    ("HKEYS", "blocked"): "1 000 dependencies of one job",
    ("HKEYS", "steps"): "1 000 steps of one job, for the doctor",
    ("HGETALL", "blocked"): "1 000 dependencies of one job",
    ("LRANGE", "errors"): "20 errors of one job",
    ("LRANGE", "log"): "1 000 lines of one job",
    ("ZRANGE", "leases"): "jobs that run",
    ("HGETALL", "gates"): "gates of a few jobs, for the doctor",
    ("HGETALL", "tallies"): "users of a few jobs, for the doctor",
    ("HGETALL", "store"): "hashes of at most 500 entries, for the doctor",
}


def calls_of(text: str) -> Iterator[str]:
    """Yield the arguments of each `redis.call`, as they are written."""
    code = code_of(text)
    for found in re.finditer(r"redis\.p?call\(", code):
        depth = 1
        for token in re.finditer(r"'(?:\\.|[^'\\])*'|[()]", code[found.end() :]):
            depth += {"(": 1, ")": -1}.get(token[0], 0)
            if not depth:
                yield code[found.end() : found.end() + token.start()]
                break


def test_script_commands_are_all_tried_before_any_write() -> None:
    tried = {text for text in literals_of(ALL["probe.lua"]) if text.isupper()}
    used = {
        re.findall(r"'([A-Z]+)'", call)[0]
        for name in ALL.keys() - DOCTOR - {"probe.lua"}
        for call in calls_of(ALL[name])
    }
    assert used <= tried <= set(COMMANDS.split())


@for_each("name", sorted(ALL.keys() - {"probe.lua"}))
def test_a_script_uses_only_commands_of_the_list(name: str) -> None:
    for call in calls_of(ALL[name]):
        command = re.match(r"'([A-Z]+)'", call)
        assert command, f"redis.call({call}) names no command"
        assert command[1] in (COMMANDS + OF_THE_DOCTOR if name in DOCTOR else COMMANDS).split(), call


@for_each("name", ALL)
def test_no_script_reads_a_whole_key_that_may_be_large(name: str) -> None:
    for call in calls_of(ALL[name]):
        command, _, rest = call.partition(", ")
        command = command.strip("'")
        if command in {"HGETALL", "HKEYS", "HVALS", "SMEMBERS"} or re.search(r", 0, -1\b", rest):
            key = re.match(r"(?:store\.)?(\w+)", rest)
            assert key
            assert (command, key[1]) in WHOLE, f"{call} in {name}"


@for_each("name", ALL)
def test_range_by_score_or_lexical_order_has_a_limit(name: str) -> None:
    for call in calls_of(ALL[name]):
        if re.match(r"'Z(REV)?RANGEBY(LEX|SCORE)'", call):
            assert "'LIMIT'" in call, f"{call} in {name}"
        if re.match(r"'[HSZ]SCAN'", call):
            assert "'COUNT'" in call, f"{call} in {name}"


@for_each("name", ALL)
def test_no_script_goes_around_the_rules_of_scripts(name: str) -> None:
    code = code_of(ALL[name])
    assert not re.search(r"redis\.pcall|loadstring|\bload\(|setfenv|getfenv|math\.random|os\.|cjson", code)


# --- refusals --------------------------------------------------------------------------------------------------------


def refusals() -> set[str]:
    """Return the first words of all errors that scripts raise."""
    words: set[str] = set()
    for text in ALL.values():
        code = code_of(text)
        words |= set(re.findall(r"(?:error_reply|error)\('([A-Z_]+)\b", code))
        # Words that are returned to build a refusal.
        words |= set(re.findall(r"return '([A-Z]+_[A-Z]+|CYCLE) ?'", code))
    return words


def test_every_refusal_is_an_error_that_the_codec_knows() -> None:
    found = refusals()
    assert found == {
        "DUPLICATE_JOB", "KEY_TAKEN", "PATH_CLOSED", "UNKNOWN_DEPENDENCY", "CYCLE", "LEASE_LOST", "FLOW_GONE",
        "FLOW_EXISTS", "OTHER_FLOW", "OTHER_SPEC", "SCHEDULE_CHANGED", "SCHEDULES_FULL", "NO_SCHEDULE", "NOT_LAST",
        "STALE_REQUEST", "CORRUPT", "BAD_SCHEMA", "BAD_ARGUMENT", "WEIGHTS_FULL", "QUEUE_FULL", "LIMITS_FULL",
        "STORE_FULL", "PAUSES_FULL", "UNDER_WAY",
    }  # fmt: skip
    specs = (JobSpec(id="a", task="t", claims=(Claim(("a",)),)),)
    submission = op.Enqueue(
        specs, staged="s", parent=("p", 1), firing=op.Firing("s", 1, 0, None), flow="f", closing=op.Closing(())
    )
    for word in found:
        assert (
            codec.refusal(op.ChangeSchedule("s", "pause") if word == "NO_SCHEDULE" else submission, f"{word}{7 * ' 0'}")
            is not None
        )


def test_script_headers_list_exactly_their_refusals() -> None:
    common = {"STALE_REQUEST", "CORRUPT", "BAD_SCHEMA", "BAD_ARGUMENT"}
    for name, text in SOURCES.items():
        said = set(
            re.findall(r"\b(?:[A-Z]+_[A-Z]+|CYCLE)\b", (re.findall(r"Refuses ([^.;:]*)", header_of(name)) or [""])[0])
        )
        done = {word for word in refusals() - common if re.search(f"'{word} ?'", code_of(text))}
        assert said == done, name


@for_each("name", ALL)
def test_an_error_reply_is_made_of_a_known_word_first(name: str) -> None:
    for argument in re.findall(r"redis\.error_reply\(([^\n]*)", code_of(ALL[name])):
        assert argument.startswith(("'", "refused)")), argument


# --- where the text of a script comes from ---------------------------------------------------------------------------


@functools.cache
def modules() -> list[tuple[str, list[ast.AST]]]:
    """Return each module of the package that may know of scripts by its path, with all nodes of its tree."""
    texts = {str(path.relative_to(PACKAGE)): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    word = re.compile(r"EVAL|SCRIPT|FCALL|FUNCTION|\b(?:eval|fcall|Script)|script\b|script_load|redis\.call|#!lua")
    return [(name, list(ast.walk(ast.parse(text)))) for name, text in texts.items() if word.search(text)]


def strings_of(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def is_call_of(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    """Return whether a node calls a function of this name, whatever it is an attribute of."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)) == name


def test_only_the_session_sends_scripts_with_texts_from_files() -> None:
    senders = set()
    for name, nodes in modules():
        for node in nodes:
            if isinstance(node, ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant):
                if node.elts[0].value in {"EVAL", "EVAL_RO", "EVALSHA", "EVALSHA_RO", "FUNCTION"}:
                    senders.add((name, *map(ast.unparse, node.elts[:3])))
    calls = "backends/redis/functions/calls.py"
    assert senders == {
        (calls, "'EVALSHA'", "which.sha"),
        (calls, "'EVAL'", "self._which.text", "*self._words"),
        (calls, "'FUNCTION'", "'LOAD'", "library_of(self._which).text"),
    }


def test_no_other_way_to_run_a_script_is_used() -> None:
    for name, nodes in modules():
        for node in nodes:
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"register_script", "script_load", "eval", "evalsha", "eval_ro", "fcall"}, name
        for text in strings_of(nodes):
            if name not in {"backends/redis/functions/calls.py", "backends/redis/doctor/server.py"}:
                assert text not in {"SCRIPT", "FCALL", "FCALL_RO", "FUNCTION"}, name


def test_no_lua_is_written_in_python() -> None:
    for name, nodes in modules():
        for text in strings_of(nodes):
            assert "redis.call" not in text, name
            assert not text.startswith("#!lua") or name == "backends/redis/functions/library.py", name


def test_script_is_made_in_one_place_from_a_package_file() -> None:
    makers = []
    for name, nodes in modules():
        if any(is_call_of(node, "Script") for node in nodes):
            for function in nodes:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    makers += [(name, function.name) for node in ast.walk(function) if is_call_of(node, "Script")]
    assert makers == [("backends/redis/scripts.py", "script")]
    assert sum(is_call_of(node, "Script") for _, nodes in modules() for node in nodes) == 1


def test_script_text_is_assembled_only_from_own_files_and_tables() -> None:
    """In scripts.py text is formatted for the names of files, for messages and for tables of Python's alone."""
    tables = {"_moves", "_policies", "_words_of", "_literal"}
    formatted = {}
    for function in dict(modules())["backends/redis/scripts.py"]:
        if isinstance(function, ast.FunctionDef):
            texts = [ast.unparse(node) for node in ast.walk(function) if isinstance(node, ast.JoinedStr)]
            joins = [
                ast.unparse(node)
                for node in ast.walk(function)
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add)
            ]
            if texts or joins:
                formatted[function.name] = joins
                assert function.name in tables or all(
                    re.search(r"\.lua|lua (include|constant)|^f'\{prefix\}\{name\}'$", text) for text in texts
                )
    assert formatted.keys() <= {"names", "constants_of", "put_in", "_included", "source", *tables}
    assert not any(formatted.values())
    assert re.fullmatch(r"local MOVES = \{(?:[A-Z] = '[A-Z]*'(?:, )?)+\}\n", scripts._moves())
    assert re.fullmatch(r"(?:local [A-Z_, ]+ = [\w\[\]{}' ,=@-]+\n)+", scripts._policies())


def test_script_names_never_come_from_user_input() -> None:
    assert {name for name, _ in REQUESTS.values()} <= SOURCES.keys()
    for name, nodes in modules():
        for node in nodes:
            if is_call_of(node, "execute_script"):
                assert isinstance(node.args[0], ast.Constant), name
