"""Performance guard: the figures it accepts, and the Redis that it simulates for scripts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.guard.__main__ import FILE, main
from benchmarks.guard.comparison import Numbers, counted_here, load, save

TABLE = {"tick": {"Lua instructions": 1000.0, "redis.call": 12.0}, "Redis: enqueue 1": {"Python calls": 200.0}}


def _changed(row: str, column: str, value: float) -> dict[str, dict[str, float]]:
    return {**TABLE, row: {**TABLE[row], column: value}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "guard.json"
    save(path, counted_here(TABLE))
    return path


@pytest.mark.parametrize(
    "row, column, most", [("tick", "Lua instructions", 1030.0), ("Redis: enqueue 1", "Python calls", 206.0)]
)
def test_a_count_may_grow_by_three_percent(file: Path, row: str, column: str, most: float) -> None:
    arguments = ["--file", str(file)]
    assert main(arguments, lambda: TABLE) == 0
    assert main(arguments, lambda: _changed(row, column, most)) == 0
    assert main(arguments, lambda: _changed(row, column, most + 0.1)) == 1
    assert main(arguments, lambda: _changed(row, column, 1.0)) == 0


def test_guard_names_increased_costs_with_both_numbers(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--file", str(file)], lambda: _changed("tick", "redis.call", 13.0))
    shown = capsys.readouterr().out
    assert "tick, redis.call: 12.00 before, 13.00 now (+8.3%)" in shown
    assert "make bench-guard ARGS=--write" in shown


def test_new_or_missing_count_must_be_accepted(file: Path) -> None:
    arguments = ["--file", str(file)]
    assert main(arguments, lambda: TABLE | {"watch": {"redis.call": 1.0}}) == 1
    assert main(arguments, lambda: {"tick": TABLE["tick"]}) == 1
    file.unlink()
    assert main(arguments, lambda: TABLE) == 1


def test_jobs_in_lines_are_shown_beside_free_ones(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    free, lines = {"Lua instructions": 2000.0, "redis.call": 0.5}, {"Lua instructions": 3000.0, "redis.call": 2.0}
    main(["--file", str(file)], lambda: TABLE | {"exchange 64": free, "exchange 64, 1,000 lines": lines})
    shown = capsys.readouterr().out
    assert "exchange 64, 1,000 lines, in order / free: 1.50 of Lua instructions, 4.00 of redis.call\n" in shown


def test_guard_write_accepts_the_current_counts(file: Path) -> None:
    arguments = ["--file", str(file)]
    assert main([*arguments, "--write"], lambda: _changed("tick", "redis.call", 24.001)) == 0
    assert main(arguments, lambda: TABLE) == 0
    assert json.loads(file.read_text())["counts"]["tick"]["redis.call"] == 24.0


def test_calls_of_functions_are_compared_within_one_release_of_python(file: Path) -> None:
    save(file, Numbers("3.0", TABLE))
    assert main(["--file", str(file)], lambda: _changed("Redis: enqueue 1", "Python calls", 999.0)) == 0
    assert main(["--file", str(file)], lambda: _changed("tick", "redis.call", 999.0)) == 1


def test_stored_counts_cover_everything_guarded() -> None:
    table = load(FILE).table
    scripts = ("tick", "enqueue 1", "enqueue 100", "exchange 1", "exchange 64", "exchange, nothing there")
    assert {"Lua instructions", "redis.call", "bytes sent", "bytes received"} <= table[scripts[0]].keys()
    assert set(scripts) <= table.keys()
    stores = ("Redis", "memory")
    assert {f"{store}: {what}" for store in stores for what in ("enqueue 1", "enqueue 100", "drain, 64 at once")} <= (
        table.keys()
    )


SCRIPTS = (
    "return cmsgpack.pack(1, -1, 127, 128, -32, -33, 255, 256, 65536, 2^31, -2^31, 2^40, -2^40, 1.5, 0.1)",
    "return cmsgpack.pack(0, true, false, nil)",
    "return cmsgpack.pack({1, 2, 'three'}, {}, {a = 1}, {1, {2}}, string.rep('x', 40), string.rep('y', 300))",
    "local a, b, c = cmsgpack.unpack(cmsgpack.pack('one', {2, 3}, 4.5)) return {a, b, tostring(c)}",
    "return {struct.pack('>I4I4', 1, 4294967295), struct.pack('<dHBi8', 0.5, 65535, 255, -2), struct.size('>I4dB')}",
    "return {struct.unpack('>I4I4', struct.pack('>I4I4', 7, 2^31))}",
    "return {struct.pack('>I7i3I6b', 2^50, -2, 2^47, -1), {struct.unpack('<i3I7', 'abcdefghijk')}}",
    "return {struct.unpack('<i3h', '\\255\\255\\255\\1\\255')}",
    "return {struct.unpack('<Bc0s', struct.pack('<Bc0s', 3, 'abc', 'text'))}",
    "return {bit.band(255, -1), bit.bor(1, 2^31), bit.bnot(0), bit.bxor(5, 1), bit.rshift(-1, 28), bit.lshift(1, 31)}",
    "return redis.call('SET', 'some', 0.1)",
    "return {1.9, '2', true, false, {3, {4}}, redis.call('STRLEN', 'some'), redis.call('GET', 'some')}",
    "return redis.call('TYPE', 'other')",
    "return {redis.call('GET', 'other'), redis.sha1hex('x'), type(redis.call('HGETALL', 'other'))}",
    "return redis.error_reply('REFUSED for a reason')",
)


@pytest.mark.redis
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs a redis-server")
def test_embedded_scripts_reply_as_redis_does() -> None:
    pytest.importorskip("lupa.lua51")
    from benchmarks.guard.server import ScriptServer, encoded

    with ScriptServer() as server:
        for script in SCRIPTS:
            command = ("EVAL", script, "0")
            assert server.answer(command) == encoded(server.ask(command)), script


@pytest.mark.redis
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs a redis-server")
def test_instructions_and_commands_are_counted_exactly() -> None:
    pytest.importorskip("lupa.lua51")
    from benchmarks.guard.server import ScriptServer

    def counted(server: ScriptServer, turns: int) -> tuple[int, int]:
        server.answer(("EVAL", "for i = 1, tonumber(ARGV[1]) do redis.call('INCR', 'n') end", "0", turns))
        counts = server.take()
        return counts.instructions, counts.commands

    with ScriptServer() as server:
        (few, one), (more, eleven) = counted(server, 1), counted(server, 11)
        assert counted(server, 11) == (more, eleven)
    assert (one, eleven) == (1, 11)
    # GETGLOBAL, GETTABLE, two LOADK, CALL and FORLOOP.
    assert more - few == 60


@pytest.mark.redis
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs a redis-server")
def test_functions_of_a_library_are_counted_as_scripts_are() -> None:
    pytest.importorskip("lupa.lua51")
    from benchmarks.guard.server import ScriptServer

    library = "#!lua name=some\nredis.register_function('twice', function(keys, args) return {keys[1], args[1]} end)"
    with ScriptServer() as server:
        assert server.answer(("FCALL", "twice", 1, "k", "v")).startswith(b"-ERR Function not found")
        assert server.answer(("FUNCTION", "LOAD", library)) == b"$4\r\nsome\r\n"
        server.take()
        assert server.answer(("FCALL", "twice", 1, "k", "v")) == b"*2\r\n$1\r\nk\r\n$1\r\nv\r\n"
        assert server.take().instructions > 0
