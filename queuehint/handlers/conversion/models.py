"""
Types of pydantic, their unions and `Annotated` forms: written and read by a `TypeAdapter`, as JSON.

A model reads what it knows and drops other fields, unless its class says otherwise. A job of a later release would so
be run without a part of its data: what a class would drop is found here, beside the validation. A class that sets
``extra`` itself, or reads its data by a validator before its fields, is left to do so.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import types
import typing
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import attrs

from queuehint.errors import PayloadError, UnknownToReleaseError
from queuehint.handlers.conversion.annotations import bare, below, is_union, leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OF_LATER = frozenset({"literal_error", "enum", "union_tag_invalid", "extra_forbidden"})
"""The types of errors that a value of a later release has."""
_EARLY = frozenset({"before", "wrap", "plain"})
_EARLY_METADATA = frozenset({"BeforeValidator", "WrapValidator", "PlainValidator"})
_PLACES_MAX = 3
_MASKED = "is a secret, and written masked: pass what names it, or give it a serializer"
_WAY_OUT = "write it another way, or register hooks: see JsonCodec.converter"


def is_of_pydantic(annotation: Any) -> bool:
    """Return whether an annotation is a type of pydantic, or a union or Annotated with some, and all that it knows."""
    if "pydantic" not in sys.modules:
        return False
    origin = get_origin(annotation)
    if not (isinstance(annotation, type) or origin is Annotated or is_union(annotation) or _is_pydantic(origin)):
        return False  # a list of them, of which each is converted by itself
    kinds = list(leaves(annotation))
    return any(map(_is_pydantic, kinds)) and not any(attrs.has(kind) for kind in kinds if isinstance(kind, type))


def _is_pydantic(kind: Any) -> bool:
    if not isinstance(kind, type):
        return False
    return hasattr(kind, "__get_pydantic_core_schema__") or hasattr(kind, "__is_pydantic_dataclass__")


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_config") and hasattr(kind, "model_fields")


class Adapter:
    """
    Writes and reads the values of one annotation.

    Raises:
        NameError: a class names another one that is not defined yet.
    """

    def __init__(self, annotation: Any) -> None:
        import pydantic

        self._annotation = annotation
        self._error = pydantic.ValidationError
        self._adapter = pydantic.TypeAdapter(annotation)
        if not getattr(self._adapter, "pydantic_complete", True):
            raise NameError(f"{annotation} is not fully defined")

    def write(self, value: Any) -> Any:
        """Return a value as JSON, by the aliases."""
        return self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)

    def read(self, value: Any, _: Any = None) -> Any:
        """
        Return a value from JSON.

        Raises:
            UnknownToReleaseError: it has a field, a member or a literal that its class does not know.
            PayloadError: it does not fit.
        """
        unknown = sorted(set(_unknown_fields(self._annotation, value)))
        if unknown:
            many = f", and {len(unknown) - _PLACES_MAX} more" if len(unknown) > _PLACES_MAX else ""
            raise UnknownToReleaseError(f"unknown fields of {', '.join(unknown[:_PLACES_MAX])}{many}")
        try:
            return self._adapter.validate_json(json.dumps(value))
        except self._error as error:
            found = [(each["loc"], each["type"]) for each in error.errors(include_url=False, include_context=False)]
            places = [f"{'.'.join(map(str, loc)) or '$'} ({kind})" for loc, kind in found]
            many = f", and {len(places) - _PLACES_MAX} more" if len(places) > _PLACES_MAX else ""
            problem = f"{', '.join(places[:_PLACES_MAX])}{many}"
            raise (UnknownToReleaseError if _is_of_later(found, value) else PayloadError)(problem) from None


def _is_of_later(errors: Iterable[tuple[tuple[Any, ...], str]], data: Any) -> bool:
    """
    Return whether errors are of a value that a later release knows.

    Of a union there are the errors of each branch, behind its name: it knows none of the value only if all have one.
    """
    branches: dict[tuple[Any, ...], dict[Any, list[tuple[tuple[Any, ...], str]]]] = {}
    for loc, kind in errors:
        here = data
        for index, step in enumerate(loc):
            if not _has(here, step):
                if kind != "missing" or index < len(loc) - 1:
                    branches.setdefault(loc[:index], {}).setdefault(step, []).append((loc[index + 1 :], kind))
                break
            here = here[step]
        else:
            if kind in _OF_LATER and (isinstance(here, (str, int)) or kind in {"union_tag_invalid", "extra_forbidden"}):
                return True
    return any(
        all(_is_of_later(group, _at(data, place)) for group in tags.values()) for place, tags in branches.items()
    )


def _has(data: Any, step: Any) -> bool:
    if isinstance(data, dict):
        return step in data
    return isinstance(data, list) and isinstance(step, int) and -len(data) <= step < len(data)


def _at(data: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        data = data[step]
    return data


# --- fields that would be dropped ---


def _unknown_fields(annotation: Any, data: Any) -> Iterator[str]:
    """Yield the classes in an annotation that would drop fields of JSON. In a union, all its classes would."""
    annotation = bare(annotation)
    if isinstance(data, dict):
        if _is_model(annotation) or hasattr(annotation, "__is_pydantic_dataclass__") or _is_record(annotation):
            yield from _of_class(annotation, data)
            return
    elif not isinstance(data, (list, tuple)):
        return
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        branches = [list(_unknown_fields(each, data)) for each in args if _may_be(each, data)]
        if branches and all(branches):
            yield from (name for branch in branches for name in branch)
    elif isinstance(data, dict) and len(args) == 2:
        for item in data.values():
            yield from _unknown_fields(args[1], item)
    elif isinstance(data, (list, tuple)) and args:
        kinds = args if origin is tuple and args[-1] is not Ellipsis else args[:1] * len(data)
        for kind, item in zip(kinds, data, strict=False):
            yield from _unknown_fields(kind, item)
    elif _is_model(annotation) and "root" in annotation.model_fields:
        yield from _unknown_fields(annotation.model_fields["root"].annotation, data)


def _is_record(kind: Any) -> bool:
    return typing.is_typeddict(kind) or (isinstance(kind, type) and dataclasses.is_dataclass(kind))


def _fields(kind: Any) -> dict[str, Any] | None:
    """Return the fields of a class with pydantic's facts. Return None if the class reads its data itself."""
    if _reads_itself(kind):
        return None
    fields = getattr(kind, "model_fields" if _is_model(kind) else "__pydantic_fields__", None)
    if isinstance(fields, dict):
        return fields
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - a name that exists for type checkers only
        return None


def _reads_itself(kind: Any) -> bool:
    decorators = getattr(kind, "__pydantic_decorators__", None)
    validators = getattr(decorators, "model_validators", {}).values()
    return any(each.info.mode in _EARLY for each in validators) or "__get_pydantic_core_schema__" in vars(kind)


def _of_class(kind: Any, data: dict[str, Any]) -> Iterator[str]:
    fields = _fields(kind)
    if fields is None:
        return
    config = getattr(kind, "model_config" if _is_model(kind) else "__pydantic_config__", None) or {}
    if "root" in fields and _is_root(kind):
        yield from _unknown_fields(fields["root"].annotation, data)
        return
    keys = {key: name for name, field in fields.items() for key in _keys(name, field, config)}
    if config.get("extra") is None and not data.keys() <= keys.keys():
        yield kind.__name__
    early = _read_early(kind)
    for key, item in data.items():
        name = keys.get(key)
        if name is not None and name not in early:
            field = fields[name]
            if not _EARLY_METADATA & {type(each).__name__ for each in getattr(field, "metadata", ())}:
                yield from _unknown_fields(getattr(field, "annotation", field), item)


def _is_root(kind: Any) -> bool:
    return any(each.__name__ == "RootModel" and each.__module__.startswith("pydantic") for each in kind.__mro__)


def _read_early(kind: Any) -> set[str]:
    """Return the names of the fields with a validator that gets the JSON."""
    decorators = getattr(kind, "__pydantic_decorators__", None)
    validators = getattr(decorators, "field_validators", {}).values()
    return {name for each in validators if each.info.mode in _EARLY for name in each.info.fields}


def _keys(name: str, field: Any, config: Any) -> Iterator[str]:
    """Give the keys by which a field is read."""
    alias = getattr(field, "validation_alias", None) or getattr(field, "alias", None)
    if alias is None or config.get("populate_by_name") or config.get("validate_by_name"):
        yield name
    if alias is not None and config.get("validate_by_alias", True):
        for each in getattr(alias, "choices", [alias]):
            yield each if isinstance(each, str) else each.path[0]


def _may_be(kind: Any, data: Any) -> bool:
    """Return whether data may be of a branch of a union: an object with its literals, or a list."""
    kind = bare(kind)
    if is_union(kind):
        return any(_may_be(each, data) for each in get_args(kind))
    if isinstance(data, list):
        return not isinstance(kind, type) and get_origin(kind) is not dict
    if not (_is_model(kind) or _is_record(kind)):
        return get_origin(kind) is dict or kind is dict
    config = getattr(kind, "model_config", {})
    for name, field in (_fields(kind) or {}).items():
        annotation = bare(getattr(field, "annotation", field))
        if get_origin(annotation) is Literal:
            for key in _keys(name, field, config):
                if key in data and data[key] not in [getattr(each, "value", each) for each in get_args(annotation)]:
                    return False
    return True


# --- why a model does not come back ---


def advice(annotation: Any, found: str) -> str:
    """
    Return which models of an annotation cannot be read back as written, with advice.

    Args:
        found: the path where a value differs, or what its reader says; a field that is not named there is no cause.
    """
    for kind in below(annotation):
        if not _is_model(kind):
            if _is_secret(kind) and not _is_in_model(annotation, found):
                return f"{kind.__name__} {_MASKED}"
            continue
        for name, field in kind.model_fields.items():
            problem = _problem(kind, name, field)
            keys = [name, *_keys(name, field, kind.model_config)]
            is_unread = problem is not None and re.search(rf"unknown fields of [^;]*\b{kind.__name__}\b", found)
            if problem is not None and (is_unread or any(_is_named(key, found) for key in keys)):
                return f"{kind.__name__}.{name} {problem}"
        if any(_is_named(name, found) for name in getattr(kind, "__private_attributes__", None) or ()):
            return f"private attributes of {kind.__name__} are not written: {_WAY_OUT}"
    return ""


def _is_named(name: str, found: str) -> bool:
    return re.search(rf"(?:^|[. ]){re.escape(name)}(?= \(|[.\[]|$)", found) is not None


def _is_in_model(annotation: Any, found: str) -> bool:
    """Return whether what was found is a field of a model."""
    return any(_is_named(name, found) for kind in below(annotation) if _is_model(kind) for name in kind.model_fields)


def _is_secret(kind: Any) -> bool:
    return _is_pydantic(kind) and hasattr(kind, "get_secret_value")


def _problem(kind: Any, name: str, field: Any) -> str | None:
    if getattr(field, "exclude", None):
        return f"is left out (exclude=True): {_WAY_OUT}"
    if any(map(_is_secret, leaves(field.annotation))):
        return _MASKED
    written = getattr(field, "serialization_alias", None) or getattr(field, "alias", None) or name
    read = list(_keys(name, field, kind.model_config))
    if written not in read:
        return f"is written as {written!r} and read as {', '.join(map(repr, read))}: give it one alias for both"
    return None
