"""
Annotations of fields, and their kinds.

What an annotation says already is not said again as a kind: a tuple holds many of a kind, a `Literal` is one of some
words, a class of ours has fields of its own.

>>> from queuehint.schema.kinds import JobId
>>> kind_of(tuple[JobId, ...] | None)
Optional(kind=Many(item=Id(), most=None), takes_bool=False, takes_none=True, words=())
"""

from __future__ import annotations

from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from queuehint.schema.kinds import RULED, Also, AtMost, Choice, Flag, Kind, Many, Member, Optional, Repeated, Row, Value


def kind_of(hint: Any) -> Kind:
    """
    Return the kind of an annotation.

    Raises:
        TypeError: it says none: a bare text or number has no limit.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(*args)
    if origin in (Union, UnionType):
        return _either(args)
    if origin is Literal:
        return Choice(*args)
    if origin is tuple:
        if args[-1] is Ellipsis:
            return Many(kind_of(args[0]))
        return Row(tuple(map(kind_of, args)))
    if hint is bool:
        return Flag()
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Member(hint)
    if isinstance(hint, type) and attrs.has(hint):
        return Value(hint)
    raise TypeError(f"{hint} says no kind of field: give it one of queuehint.schema.kinds")


def ruled(cls: type[Any]) -> dict[str, Kind]:
    """Return the fields of a class that the rules of a store read, by name, with their kinds."""
    hints = get_type_hints(cls, include_extras=True)
    marked = [name for name, hint in hints.items() if RULED in getattr(hint, "__metadata__", ())]
    return {name: kind_of(hints[name]) for name in marked}


def _annotated(hint: Any, *said: object) -> Kind:
    kind: Kind | None = None
    for each in said:
        if isinstance(each, Kind) and not isinstance(each, (Also, Repeated)):
            kind = each
            continue
        kind = kind or kind_of(hint)
        if isinstance(each, AtMost):
            assert isinstance(kind, Many)
            kind = Many(kind.item, each.most)
        elif isinstance(each, Also):
            kind = Also(each.parse, kind)
        elif isinstance(each, Repeated):
            kind = Repeated(kind)
    return kind or kind_of(hint)


def _either(hints: tuple[Any, ...]) -> Kind:
    rest = [hint for hint in hints if hint not in (NoneType, bool) and get_origin(hint) is not Literal]
    words = tuple([word for hint in hints if get_origin(hint) is Literal for word in get_args(hint)])
    if not rest:
        kind: Kind = Choice(*words)
        words = ()
    else:
        (hint,) = rest
        kind = kind_of(hint)
    return Optional(kind, words=words, takes_none=NoneType in hints, takes_bool=bool in hints)
