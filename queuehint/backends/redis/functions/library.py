"""
The library of Redis Functions, built from the same files as the scripts.

A script runs anew at every call. A library is loaded once; its functions are made at the first call and stay, and all
other statements of a file run again at the *start* of each call. So no data of a call is kept, even if the call before
ended with an error:

- A local whose value is not a function becomes a variable, which is set at the start of each call. A constant is made
  once: it is written in capitals, its value is made of literals alone, and nothing writes to it.
- A table of functions (``function name.of()``) is made once; at the start of a call all its other fields that are ever
  assigned are set to the values in its text, or to nil.
- A variable marked ``-- @once`` is kept from call to call.
- The text of an operation's own file is the body of its function; the functions in it are made once too.

While a library is loaded, the only global is `redis.register_function`; so everything is made at the first call.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final

from queuehint.backends.base import release
from queuehint.backends.redis import scripts
from queuehint.backends.redis.functions.statements import IDENTIFIER, ONCE, Statement, statements, values, words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PREFIX: Final = "queuehint_"
"""Of the name of every library of ours."""
GLOBALS: Final = (
    "redis", "string", "table", "math", "bit", "struct", "cmsgpack", "tonumber", "tostring", "type", "ipairs", "pairs",
    "next", "select", "unpack", "setmetatable", "rawget", "pcall", "error",
)  # fmt: skip
"""Names that a function of a library finds behind a metatable, and faster in locals."""
_PURE: Final = frozenset({"string", "true", "false", "nil", "and", "or", "not"})
_CONSTANT: Final = re.compile(r"[A-Z][A-Z0-9_]*$")
_SQUARE: Final = r"\[(?:[^\[\]\n]|\[[^\[\]\n]*\])*\]"
_INDEX: Final = rf"(?:\.\w+|{_SQUARE})"
_KEY: Final = re.compile(r"\b\w+ =(?!=)")
_WORD: Final = re.compile(r"\w+")
_LOCAL_FUNCTION: Final = re.compile(r"local function (\w+)\(")
_METHOD: Final = re.compile(r"function (\w+)\.(\w+)\(")
_ALIAS: Final = re.compile(r"(\w+)\.(\w+) = (\w+)")
_HEAD: Final = """\
local KEYS, ARGV = false, false
local BEGIN, BEGIN_OF, BODY = {}, {}, {}
"""
_FOOT: Final = """\
return function(name, keys, args)
KEYS, ARGV = keys, args
local early = BEGIN_OF[name]()
if early then return early end
return BODY[name]()
end
end
local call = false
for at = 1, #NAMES, 2 do
local name = NAMES[at]
redis.register_function({function_name = PREFIX .. name, flags = NAMES[at + 1], callback = function(keys, args)
call = call or make()
return call(name, keys, args)
end})
end"""
_TAKEN: Final = frozenset({*GLOBALS, "KEYS", "ARGV", "BEGIN", "BEGIN_OF", "BODY"})


class Library:
    """
    All operations as functions.

    Args:
        edit: changes the text of each file before it is used, by its name; for tests.
    """

    def __init__(self, edit: Callable[[str, str], str] = lambda _, text: text) -> None:
        self._edit = edit
        texts = [edit(name, scripts.source(name)) for name in scripts.files_of_operations()]
        version = release()
        digest = hashlib.sha1("\0".join((version, *texts)).encode(), usedforsecurity=False)
        self.digest = digest.hexdigest()[:16]
        """Stands in all its names, so that libraries of several releases live side by side."""
        version = re.sub(r"\W", "_", version, flags=re.ASCII)
        self.name = f"{PREFIX}{version}_{self.digest}"

    def function(self, name: str) -> str:
        """Return the name of the function of a script."""
        return f"qh_{self.digest}_{name}"

    @cached_property
    def text(self) -> str:
        """Return the text of the library for a server, which is assembled slowly and rarely."""
        return _Builder(self._read).build(self.name, self.function(""), _entries())

    def _read(self, name: str) -> str:
        return self._edit(name, scripts.source(name))


@cache
def library() -> Library:
    """Return the library of this release."""
    return Library()


def _entries() -> list[str]:
    """Return the scripts that are functions: the doctor's are not, they stand in between rules and server."""
    return [name for name in scripts.names() if "/" not in name]


class _Builder:
    """Puts a library together."""

    def __init__(self, read: Callable[[str], str]) -> None:
        self._read = cache(read)
        self._parts_of = cache(self._parts)
        self._own_constants_of = cache(lambda name: scripts.constants_of(self._read(name)))
        self._visible: set[str] = set(_TAKEN)
        """The locals that are seen by whatever follows."""
        self._constants: set[str] = set()
        self._begins = 0
        self._lines_with: defaultdict[str, list[str]] = defaultdict(list)

    def build(self, name: str, prefix: str, entries: list[str]) -> str:
        """
        Return the text of a library.

        Raises:
            ValueError: two files contradict each other, or one says what a library cannot do.
        """
        parts = self._in_order(entries)
        # A constant has one value in a script; in two of them it may have two where no file is in both.
        constants = {entry: self._constants_of(entry) for entry in entries}
        names = set().union(*constants.values())
        named = {part: names.intersection(IDENTIFIER.findall(self._read(part))) for part in (*parts, *entries)}
        used: dict[str, dict[str, str]] = {}
        for entry, values_of in constants.items():
            for part in (*self._parts_of(entry), entry):
                here = {name: values_of[name] for name in named[part] if name in values_of}
                if used.setdefault(part, here) != here:
                    raise ValueError(f"lua file {part} has constants of several values")
        lines = {
            part: scripts.plain_lines(re.sub(r"\A#!.*\n", "", self._read(part)), here, ONCE)
            for part, here in used.items()
        }
        for line in (line for part in lines.values() for line in part):
            for word in set(_WORD.findall(line)):
                self._lines_with[word].append(line)
        self._methods = self._methods_of_tables()
        out = [_HEAD]
        begins = {part: self._library_file(part, lines[part], out) for part in parts}
        orders: dict[tuple[str, ...], str] = {}
        for entry in entries:
            order = tuple(line for part in self._parts_of(entry) for line in begins[part])
            if order not in orders:
                orders[order] = f"BEGIN_OF.{entry}"
                out += [f"{orders[order]} = function()", "local early", *order, "end"]
            else:
                out.append(f"BEGIN_OF.{entry} = {orders[order]}")
            self._operation(entry, lines[entry], out)
        body = "\n".join(out)
        found = [each for each in GLOBALS if each in self._lines_with]
        return "\n".join(
            (
                f"#!lua name={name}",
                f"local PREFIX = '{prefix}'",
                f"local NAMES = {{{', '.join(self._registered(entry) for entry in entries)}}}",
                "local function make()",
                f"local {', '.join(found)} = {', '.join(found)}" if found else "",
                body,
                _FOOT,
            )
        )

    # --- what goes in ------------------------------------------------------------------------------------------------

    def _in_order(self, entries: list[str]) -> list[str]:
        """Return all included files, each after the files it requires."""
        before: dict[str, set[str]] = {}
        for entry in entries:
            parts = self._parts_of(entry)
            for at, part in enumerate(parts):
                before.setdefault(part, set()).update(parts[:at])
        order: dict[str, None] = {}
        while rest := [part for part in before if part not in order]:
            ready = [part for part in rest if before[part] <= order.keys()]
            if not ready:
                raise ValueError(f"lua files are included in several orders: {', '.join(rest)}")
            order |= dict.fromkeys(ready[:1])
        return list(order)

    def _parts(self, name: str) -> list[str]:
        """Return the files that a file includes, in order, each after its own includes."""
        found: dict[str, None] = {}
        for part in scripts.INCLUDE.findall(self._read(name)):
            found |= dict.fromkeys((*self._parts_of(part), part))
        return list(found)

    def _constants_of(self, entry: str) -> dict[str, str]:
        """Return the constants of a script; that each has one value there is seen where it is put together."""
        found: dict[str, str] = {}
        for part in (*self._parts_of(entry), entry):
            found |= self._own_constants_of(part)
        return found

    def _registered(self, entry: str) -> str:
        flags = scripts.flags_of(self._read(entry))
        return f"'{entry}', {{{', '.join(repr(flag) for flag in flags)}}}"

    def _methods_of_tables(self) -> dict[str, set[str]]:
        """Return the names of the functions of each table of functions."""
        functions = {found[1] for line in self._lines_with["function"] if (found := _LOCAL_FUNCTION.match(line))}
        methods: dict[str, set[str]] = {}
        for line in self._lines_with["function"]:
            if found := _METHOD.match(line):
                methods.setdefault(found[1], set()).add(found[2])
        for table, names in methods.items():
            for line in self._lines_with[table]:
                if (found := _ALIAS.fullmatch(line)) and found[1] == table and found[3] in functions:
                    names.add(found[2])
        return methods

    def _matching(self, name: str, pattern: str) -> Iterator[re.Match[str]]:
        compiled = re.compile(pattern)
        for line in self._lines_with.get(name, ()):
            yield from compiled.finditer(line)

    def _is_constant(self, statement: Statement) -> bool:
        """Return whether locals may be made once: their values are literals, and nothing writes to them."""
        if not statement.value or not all(map(_CONSTANT.match, statement.names)):
            return False
        if words(_KEY.sub("", statement.value)) - _PURE - self._constants:
            return False
        return not any(self._is_written(name) for name in statement.names)

    def _is_written(self, name: str) -> bool:
        writes = rf"^(?!local ).*?(?<![\w.'])(?:{name}{_INDEX}?(?:, [\w.\[\]]+)* = |table\.\w+\({name}\b)"
        return any(True for _ in self._matching(name, writes))

    # --- files that operations have in common ------------------------------------------------------------------------

    def _library_file(self, name: str, lines: list[str], out: list[str]) -> list[str]:
        """Write a file that others include. Return the statements to run at the start of a call."""
        begins: list[str] = []
        self._scope(lines, out, begins, name, self._visible)
        return begins

    def _scope(self, lines: list[str], out: list[str], begins: list[str], name: str, seen: set[str]) -> None:
        pending: list[Statement] = []
        for statement in statements(lines):
            if statement.kind == "function":
                out.append(statement.text)
                self._see(statement.names if "." not in statement.names[0] else (), name, seen)
            elif statement.kind == "block":
                self._flush(pending, out, begins)
                out.append("do")
                self._scope(statement.lines, out, begins, name, set(seen))
                out.append("end")
            elif statement.kind == "local":
                self._see(statement.names, name, seen)
                pending += self._local(statement, out)
            elif statement.is_once or self._is_method(statement):
                out.append(statement.text)
            else:
                pending.append(statement)
        self._flush(pending, out, begins)

    def _local(self, statement: Statement, out: list[str]) -> Iterator[Statement]:
        """Declare locals. Yield the statements that set them at the start of a call."""
        names = statement.names
        if self._is_constant(statement):
            self._constants.update(names)
            out.append(statement.text)
        elif statement.is_once:
            out.append(statement.text)
        elif len(names) == 1 and (names[0] in self._methods or statement.holds_functions):
            yield from self._table(statement, out)
        elif values(statement.value) == ["{}"] * len(names):
            out.append(statement.text)
            yield from map(_empty, names)
        else:
            given = dict(zip(names, values(statement.value), strict=False))
            # One call may return the values of all names together.
            tables = [name for name in given if given[name] == "{}"] if len(given) == len(names) else []
            if tables:
                out.append(f"local {', '.join(tables)} = {', '.join('{}' for _ in tables)}")
                yield from map(_empty, tables)
            rest = [name for name in names if name not in tables]
            out.append(f"local {', '.join(rest)}")
            value = ", ".join(given[name] for name in rest) if tables else statement.value
            yield _set(", ".join(rest), value or "nil")

    def _table(self, statement: Statement, out: list[str]) -> Iterator[Statement]:
        """Declare a table of functions. Yield the statements that set its other fields at the start of a call."""
        (name,) = statement.names
        fields: dict[str, str] = {}
        tables: list[str] = []
        if statement.holds_functions:
            out.append(statement.text)
        else:
            if not re.fullmatch(r"\{.*\}", statement.value, re.DOTALL):
                raise ValueError(f"lua table of functions {name} is {statement.value}")
            if any(True for _ in self._matching(name, rf"(?<![\w.]){name}{_SQUARE} = ")):
                raise ValueError(f"lua table of functions {name} is written to by other than names")
            for field in values(statement.value[1:-1]):
                if field:
                    key, _, value = field.partition(" = ")
                    fields[key] = value
            tables = [field for field, value in fields.items() if value == "{}"]
            out.append(f"local {name} = {{{', '.join(f'{field} = {{}}' for field in tables)}}}")
            yield from (_empty(f"{name}.{field}") for field in tables)
            fields = {field: value for field, value in fields.items() if field not in tables}
        assigned = self._matching(name, rf"(?<![\w.]){name}\.(\w+)(?=(?:, [\w.\[\]]+)* = )")
        for field in dict.fromkeys(found[1] for found in assigned):
            if field not in self._methods.get(name, ()) and field not in tables:
                fields.setdefault(field, "nil")
        if fields:
            yield _set(", ".join(f"{name}.{field}" for field in fields), ", ".join(fields.values()))

    def _is_method(self, statement: Statement) -> bool:
        found = _ALIAS.fullmatch(statement.text)
        return found is not None and found[2] in self._methods.get(found[1], ())

    def _see(self, names: Iterable[str], where: str, seen: set[str]) -> None:
        for name in names:
            # A variable set at the start of a call would be mistaken for a later one of the same name.
            if name in seen:
                raise ValueError(f"lua local {name} in {where} hides another one")
            seen.add(name)

    def _flush(self, pending: list[Statement], out: list[str], begins: list[str]) -> None:
        if pending:
            self._begins += 1
            begin = f"BEGIN[{self._begins}]"
            if any(statement.returns for statement in pending):
                begins += [f"early = {begin}()", "if early then return early end"]
            else:
                begins.append(f"{begin}()")
            out.append(f"{begin} = function()")
            out += [statement.text for statement in pending]
            out.append("end")
            pending.clear()

    # --- operations --------------------------------------------------------------------------------------------------

    def _operation(self, name: str, lines: list[str], out: list[str]) -> None:
        """Write the function of an operation: its own functions are made once, all else is its body."""
        found = list(statements(lines))
        inner = set().union(*(words(each.text) for each in found if _is_function(each)))
        made, body, seen = [], [], set(self._visible)
        for each in found:
            if each.kind == "local" and (self._is_constant(each) or each.holds_functions):
                made.append(each.text)
                self._see(each.names, name, seen)
                self._constants.update(each.names)
            elif each.kind == "local" and inner.intersection(each.names):
                made.append(f"local {', '.join(each.names)}")
                body.append(_set(", ".join(each.names), each.value or "nil").text)
                self._see(each.names, name, seen)
            elif each.kind == "function":
                made.append(each.text)
                self._see(each.names if "." not in each.names[0] else (), name, seen)
            else:
                body.append(each.text)
        out += [
            "do",
            *made,
            f"BODY.{name} = function()",
            *body,
            "end",
            "end",
        ]


def _is_function(statement: Statement) -> bool:
    return statement.kind == "function" or statement.holds_functions


def _empty(name: str) -> Statement:
    """Set a table that is the same at every call, as long as nothing was put into it: most calls need few of all."""
    return Statement("other", [f"if next({name}) then {name} = {{}} end"])


def _set(names: str, value: str) -> Statement:
    return Statement("other", f"{names} = {value}".split("\n"))
