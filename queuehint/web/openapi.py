"""
The API description as OpenAPI 3.1, derived from the table and from the annotations and kinds of its values.

A class has one schema as it is written, by its name, and another as it is read, by its name behind ``New``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import attrs

from queuehint import __version__
from queuehint.schema.annotations import kind_of
from queuehint.schema.kinds import (
    Also,
    AtMost,
    Count,
    Flag,
    Kind,
    Label,
    Many,
    Member,
    Number,
    PathOf,
    Payload,
    Text,
    bare,
)
from queuehint.values.hint import DEPTH_MAX, KEY_LENGTH_MAX, SEGMENT_BYTES_MAX
from queuehint.values.spec import Priority
from queuehint.web.forms import BESIDES, OF_ALL, fields_of, parameters_of
from queuehint.web.table import Route

Schema = dict[str, Any]
JSON: Final = "application/json"
PROBLEM: Final[Schema] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "error", "facts"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "a sentence that names the parameter, the value and the limit"},
        "error": {"type": "string", "description": "the class of the error, or a word"},
        "facts": {"type": "object", "description": "the attributes of the error"},
    },
}
PAYLOAD: Final[Schema] = {
    "description": "Arguments or a result: null if hidden, else the value, or a text if it is long or no JSON.",
    "anyOf": [
        {"type": "null"},
        {
            "type": "object",
            "required": ["bytes"],
            "properties": {"bytes": {"type": "integer"}, "value": {}, "text": {"type": "string"}},
        },
    ],
}
REFUSED: Final = {
    "400": "A parameter or a field is wrong.",
    "401": "A user and a password are needed.",
    "403": "This user may not.",
    "404": "It is not there.",
    "409": "It is in another state, or there with other content.",
    "413": "The body, or arguments or data in it, take too many bytes.",
    "415": "The body is no JSON.",
    "421": "The board answers for other hosts.",
    "429": "A limit of unfinished jobs is reached.",
    "503": "The store is away or slow.",
    "504": "The store gave no answer: the order may be carried out or not, repeat it.",
}


def described(routes: tuple[Route, ...], at: str) -> Schema:
    """Return the API description for the root *at*."""
    schemas = _Schemas()
    paths: dict[str, dict[str, Schema]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = schemas.operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "queuehint", "version": __version__},
        "servers": [{"url": at}],
        "paths": paths,
        "components": {"schemas": {"Problem": PROBLEM, "Payload": PAYLOAD, **schemas.found}},
    }


class _Schemas:
    """The schemas of classes, each described once."""

    def __init__(self) -> None:
        self.found: dict[str, Schema] = {}
        self._classes: dict[str, type[Any]] = {}

    def operation(self, route: Route) -> Schema:
        """Return the description of a row."""
        said: Schema = {"operationId": route.name, "summary": route.summary, "parameters": self._parameters(route)}
        if route.is_order:
            body = self._object(route.asks, is_asked=True, without={*route.bind.values(), *route.fixed})
            said["requestBody"] = {"required": bool(body["required"]), "content": {JSON: {"schema": body}}}
        refused = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
        said["responses"] = {
            "200": {"description": "The answer.", "content": {JSON: {"schema": self.of(route.answers)}}},
            **{status: {"description": text, **refused} for status, text in REFUSED.items()},
        }
        return said

    def _parameters(self, route: Route) -> list[Schema]:
        hints = fields_of(route.asks, is_asked=True)
        in_path = [
            {"name": name, "in": "path", "required": True, "schema": _in_path(kind_of(hints[field]))}
            for name, field in route.bind.items()
        ]
        if route.is_order:
            return in_path
        said = {name: row for name, row in parameters_of(route.asks).items() if row[0][0] not in route.bind.values()}
        return in_path + [
            {"name": name, "in": "query", "required": is_needed, "schema": _in_query(kind)}
            for name, (_, kind, is_needed) in said.items()
        ]

    def of(self, hint: Any, *, is_asked: bool = False) -> Schema:
        """Return the schema of an annotation."""
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._annotated(args[0], args[1:], is_asked=is_asked)
        if origin in {Union, UnionType}:
            return {"anyOf": [self.of(arg, is_asked=is_asked) for arg in args]}
        if origin is Literal:
            return {"enum": list(args)}
        if origin is tuple and args[-1] is Ellipsis:
            return {"type": "array", "items": self.of(args[0], is_asked=is_asked)}
        if origin is tuple:
            # What is where ``prefixItems`` would say; not all tools read it.
            items = {"anyOf": [self.of(arg, is_asked=is_asked) for arg in args]}
            return {"type": "array", "items": items, "minItems": len(args), "maxItems": len(args)}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(args[1], is_asked=is_asked)}
        if isinstance(hint, type) and issubclass(hint, Enum):
            return {"enum": [member.value for member in hint]}
        if attrs.has(hint):
            return self._ref(hint, is_asked=is_asked)
        return {"$ref": "#/components/schemas/Payload"} if hint is bytes else {"type": _TYPES[hint]}

    def _annotated(self, hint: Any, said: tuple[Any, ...], *, is_asked: bool) -> Schema:
        found: Schema = {}
        for each in said:
            if isinstance(each, Payload):
                return {} if is_asked else {"$ref": "#/components/schemas/Payload"}
            if isinstance(each, AtMost):
                found["maxItems"] = each.most
            elif isinstance(each, Kind) and not isinstance(each, Also):
                found |= _of_kind(each)
        return self.of(hint, is_asked=is_asked) | found

    def _ref(self, cls: type[Any], *, is_asked: bool) -> Schema:
        name = f"New{cls.__name__}" if is_asked else cls.__name__
        if name not in self.found:
            self._classes[name] = cls
            self.found[name] = {}  # it may hold itself
            self.found[name] |= self._object(cls, is_asked=is_asked)
        assert self._classes[name] is cls, name
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, cls: type[Any], *, is_asked: bool, without: set[str] = frozenset()) -> Schema:  # type: ignore[assignment]
        fields = {name: hint for name, hint in fields_of(cls, is_asked=is_asked).items() if name not in without}
        found: Schema = {"type": "object", "properties": {}}
        for name, hint in fields.items():
            found["properties"][name] = _HEADERS if name == "headers" else self.of(hint, is_asked=is_asked)
        if is_asked:
            of_class = attrs.fields_dict(cls)
            found["required"] = [name for name in fields if of_class[name].default is attrs.NOTHING]
            found["additionalProperties"] = False
        else:
            besides: Mapping[str, Any] = BESIDES.get(cls, {})
            found["properties"] |= {name: self.of(hint) for name, (hint, _) in besides.items()}
            found["required"] = [name for name in found["properties"] if name not in OF_ALL.get(cls, ())]
        return found


_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
_HEADERS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
_PRIORITIES: Final[Schema] = {"enum": sorted({int(each) for each in Priority})}


def _of_kind(kind: Kind) -> Schema:
    """Return the constraints of a kind besides its type. Lengths count bytes, which are no fewer than characters."""
    if isinstance(kind, Label):
        return {"minLength": 1, "maxLength": kind.most}
    if isinstance(kind, Text):
        return {"maxLength": kind.most}
    if isinstance(kind, (Count, Number)):
        return {"minimum": kind.least, "maximum": kind.most}
    if isinstance(kind, PathOf):
        return {"items": {"type": "string", "minLength": 1, "maxLength": SEGMENT_BYTES_MAX}, "maxItems": DEPTH_MAX}
    return _PRIORITIES


def _in_query(kind: Kind) -> Schema:
    """Return the schema of a query parameter with one value or several."""
    kind = bare(kind)
    if isinstance(kind, Many):
        return {"type": "array", "items": _in_query(kind.item)}
    if isinstance(kind, Member):
        return {"enum": [member.value for member in kind.cls]}
    if isinstance(kind, Flag):
        return {"type": "boolean"}
    if isinstance(kind, Count):
        return {"type": "integer", **_of_kind(kind)}
    if isinstance(kind, (Label, Text)):
        return {"type": "string", **_of_kind(kind)}
    return {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH_MAX, "description": "a queue key"}


def _in_path(kind: Kind) -> Schema:
    kind = bare(kind)
    return _in_query(kind.item if isinstance(kind, Many) else kind)
