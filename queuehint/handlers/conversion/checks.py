"""Whether annotations can be written and read at all, and why a value is not read as it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cattrs.errors import StructureHandlerNotFoundError

from queuehint.handlers.arguments import called
from queuehint.handlers.conversion.unions import AmbiguousUnionError

WAY_OUT = ": annotate another type, or register hooks before the job: see JsonCodec.converter"

if TYPE_CHECKING:
    import cattrs


def ask_for_hooks(converter: cattrs.Converter, annotation: Any) -> str | None:
    """
    Ask a converter for both hooks of an annotation; return what is wrong with it, None if nothing is.

    Raises:
        NameError: a class names another one that is not defined yet.
    """
    try:
        converter.get_unstructure_hook(annotation)
        converter.get_structure_hook(annotation)
    except NameError:
        raise
    except Exception as error:  # noqa: BLE001 - a hook factory of the application may raise anything
        return problem_of(error) or f"{called(annotation)} has no JSON{WAY_OUT}"
    return None


def problem_of(error: BaseException) -> str | None:
    """Return what is wrong with an annotation, if that is why its values cannot be written or read."""
    if isinstance(error, AmbiguousUnionError):
        return str(error)
    if isinstance(error, StructureHandlerNotFoundError):
        return f"{called(error.type_)} has no JSON{WAY_OUT}"
    return None
