"""
Cron expressions as text: what Debian's cron reads becomes what cronsim reads in the same way.

Nicknames become five fields. Names become numbers, also in ranges and before ``L``; a range of names may go around the
end of the week or the year. A range of one value with a step is that value. What is not read is refused with a way to
write it.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from queuehint.errors import InvalidJobError, shown


@attrs.frozen
class _Field:
    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()
    """Of the values from 0 or 1 on."""

    def number(self, text: str) -> int | None:
        """Return the value that a number or a name stands for, None if it is none of this field."""
        if text in self.names:
            return self.names.index(text) + self.least
        if not text.isascii() or not text.isdigit() or len(text) > 4:
            return None
        return int(text) if self.least <= int(text) <= self.most else None


_DAY, _DOW = "day of month", "day of week"
FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field(_DAY, 1, 31),
    _Field("month", 1, 12, ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")),
    _Field(_DOW, 0, 7, ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")),
)
NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_WEEKDAY: Final = re.compile(r"\d*W\d*")
_LAST: Final = re.compile(r"([^/-]+)L")
_NTH: Final = re.compile(r"([^/-]+)#(.*)", re.DOTALL)


def plain_cron(text: str) -> str:
    """
    Return a cron expression in five fields of numbers, as far as its parts can be read.

    >>> plain_cron("@daily"), plain_cron("0 4 * NOV-MAR fri-sun"), plain_cron("9-9/3 * * * FRIL")
    ('0 0 * * *', '0 4 * 11-12,1-3 5-7', '9 * * * 5L')

    Raises:
        InvalidJobError: naming the field, the value, and the limit or a way to write it.
    """
    words = text.split()
    if len(words) == 1 and words[0].startswith("@"):
        if words[0].lower() in NICKNAMES:
            return NICKNAMES[words[0].lower()]
        if words[0].lower() == "@reboot":
            raise _wrong(text, "@reboot is not supported; enqueue the job where the application starts")
        raise _wrong(text, f"must be one of {', '.join(NICKNAMES)}, or have five fields")
    if len(words) != len(FIELDS):
        names = ", ".join(field.name for field in FIELDS)
        more = "; seconds and years are not supported" if len(words) in {6, 7} else ""
        raise InvalidJobError(f"cron must have five fields ({names}), got {shown(text)}{more}")
    return " ".join([_plain(text, field, word.upper()) for field, word in zip(FIELDS, words, strict=True)])


def _wrong(text: str, problem: str) -> InvalidJobError:
    return InvalidJobError(f"cron {shown(text)}: {problem}")


def _plain(text: str, field: _Field, word: str) -> str:
    """Return a field as numbers; it begins with a star where it did."""
    if word == "?":
        raise _wrong(text, f"{field.name} ? is not supported; write *")
    return ",".join([_term(text, field, term) for term in word.split(",")])


def _term(text: str, field: _Field, term: str) -> str:
    if field.name == _DAY and (term in {"L", "LW"} or _WEEKDAY.fullmatch(term) or term.startswith("L-")):
        return _last_day(text, term)
    if field.name == _DOW and (last := _LAST.fullmatch(term)):
        return f"{_number(text, field, last[1])}L"
    if field.name == _DOW and term == "L":
        raise _wrong(text, "day of week L is not supported; write SAT, or 6L for the last Saturday of the month")
    if field.name == _DOW and (nth := _NTH.fullmatch(term)):
        if nth[2] not in {"1", "2", "3", "4", "5"}:
            raise _wrong(text, f"day of week {term} must end in a number from 1 to 5, as 1#2 for the second Monday")
        return f"{_number(text, field, nth[1])}#{nth[2]}"
    term, slash, step = term.partition("/")
    if slash and not (step.isascii() and step.isdigit() and int(step[:6]) > 0):
        raise _wrong(text, f"{field.name} must have a step of at least 1 behind the /, got {term}{slash}{step}")
    behind = f"{slash}{int(step[:6])}" if slash else ""
    if term == "*":
        return f"*{behind}"
    first, dash, last_name = term.partition("-")
    begin = _number(text, field, first)
    if not dash:
        return f"{begin}{behind}"
    end = _number(text, field, last_name)
    if begin == end:
        return str(begin)
    if begin < end:
        return f"{begin}-{end}{behind}"
    return _around(text, field, term, begin, end, behind)


def _around(text: str, field: _Field, term: str, begin: int, end: int, behind: str) -> str:
    """Return a range that goes around the end of the week or the year, where it is told by names."""
    if field.name == _DOW and end == 0:
        return f"{begin}-7{behind}"
    top = field.most - (field.name == _DOW)
    parts = [f"{a}-{b}" if a != b else str(a) for a, b in ((begin, top), (field.least, end))]
    if field.names and all(part in field.names for part in term.split("-")) and not behind:
        return ",".join(parts)
    raise _wrong(text, f"{field.name} {term}{behind} must not end before it begins; write {','.join(parts)}")


def _last_day(text: str, term: str) -> str:
    if term in {"L", "LW"}:
        return term
    if term.startswith("L-"):
        raise _wrong(text, f"day of month {term} is not supported; write 28-31, and let the job look at the date")
    raise _wrong(
        text, f"day of month {term} is not supported; name a day, or write a range and let the job look at the date"
    )


def _number(text: str, field: _Field, value: str) -> int:
    number = field.number(value)
    if number is not None:
        return number
    names = f" or {field.names[0]} to {field.names[-1]}" if field.names else ""
    raise _wrong(text, f"{field.name} must be {field.least} to {field.most}{names}, got {shown(value)}")
