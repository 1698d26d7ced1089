"""The end of an attempt in its process, as a frame: a result, an answer or an exception."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from queuehint.errors import UnknownToReleaseError
from queuehint.handlers.context import Children, Discard, Fail, Leave, RaisedAnswer, Retry, Snooze, raised_answer
from queuehint.handlers.remote import (
    MAIN,
    MAIN_OF_CHILD,
    EncodedResult,
    Kinds,
    RemoteError,
    Trouble,
    kinds_of,
)
from queuehint.worker.failures import qualified_name, related_texts, safe_str, stored_traceback, whole_traceback

if TYPE_CHECKING:
    from queuehint.handlers.codec import Codec
    from queuehint.handlers.context import JobContext
    from queuehint.handlers.handler import Handler
    from queuehint.worker.processes.channel import Frame


def end_of_result(handler: Handler, codec: Codec, context: JobContext, result: Any) -> Frame:
    """Return the end of a handler that has returned a value."""
    try:
        if isinstance(result, RaisedAnswer):
            return _end_of_answer(result)
        if isinstance(result, Children):
            ids = result.ids or context.made
            context.check_children(result)
            head, payload = _end_of_value(handler, codec, result.result)
            return {**head, "end": "children", "ids": ids, "on_child_failure": result.on_child_failure}, payload
        if inspect.iscoroutine(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            if inspect.iscoroutine(result):
                result.close()
            message = f"{handler.name} returned a {type(result).__name__}, not a result; is an `await` missing?"
            return end_of_error(TypeError(message), is_final=True)
        return _end_of_value(handler, codec, result)
    except BaseException as error:  # noqa: BLE001 - a codec of the application's may raise anything
        return end_of_error(error, is_final=not isinstance(error, OSError))


def _end_of_value(handler: Handler, codec: Codec, result: Any) -> Frame:
    kind = "none" if result is None else "dict" if isinstance(result, dict) else "other"
    return {"end": "result", "kind": kind}, handler.dump_result(codec, result)


def _end_of_answer(answer: RaisedAnswer) -> Frame:
    end: dict[str, Any] = {"end": "answer", "answer": type(answer).__name__}
    if isinstance(answer, Retry):
        end |= {"after_ms": answer.after_ms, "reason": answer.reason}
    elif isinstance(answer, Snooze):
        end["after_ms"] = answer.delay_ms
    elif isinstance(answer, Leave):
        end["wait_id"] = answer.wait_id
    elif isinstance(answer, (Fail, Discard)):
        end["reason"] = answer.reason
    if answer.__traceback__ is not None:
        end["raised"] = _described(answer, is_final=False)
    return end, b""


def end_of_unread(error: UnknownToReleaseError) -> Frame:
    """Return the end of an attempt with arguments of a later release. Its code has not begun."""
    return {"end": "unknown_to_release", "problem": error.problem, "path": error.path}, b""


def end_of_error(error: BaseException, *, is_final: bool = False) -> Frame:
    """Return the end of a handler that has raised an exception. *is_final*: another attempt would end the same way."""
    answer = raised_answer(error)
    if answer is not None:
        return _end_of_answer(answer)
    return {"end": "error", **_described(error, is_final=is_final)}, b""


def _described(error: BaseException, *, is_final: bool) -> dict[str, Any]:
    return {
        "type": qualified_name(error).replace(f"{MAIN_OF_CHILD}.", f"{MAIN}.", 1),
        "message": safe_str(error),
        "related": list(related_texts(error)),
        "traceback": stored_traceback(error),
        "printed": whole_traceback(error),
        "kinds": kinds_of(error).wire(),
        "is_final": is_final,
    }


def result_of(frame: Frame) -> Any:
    """
    Return the value of a handler, or its raised answer, from its end.

    Raises:
        RemoteError: what it has raised.
        UnknownToReleaseError: a later release has written the arguments.
    """
    head, payload = frame
    end = head["end"]
    if end == "result":
        return EncodedResult(payload, head["kind"])
    if end == "children":
        return Children(
            *head["ids"], result=EncodedResult(payload, head["kind"]), on_child_failure=head["on_child_failure"]
        )
    if end == "unknown_to_release":
        raise UnknownToReleaseError(head["problem"], path=head["path"])
    if end == "error":
        raise RemoteError(_trouble(head))
    answer = _answer(head)
    if "raised" in head:
        answer.__cause__ = RemoteError(_trouble(head["raised"]))
    return answer


def _trouble(head: dict[str, Any]) -> Trouble:
    return Trouble(
        type=head["type"],
        message=head["message"],
        related=tuple(head["related"]),
        traceback=head["traceback"],
        printed=head["printed"],
        kinds=Kinds.read(head["kinds"]),
        is_final=head["is_final"],
    )


def _answer(head: dict[str, Any]) -> RaisedAnswer:
    kind, after_ms = head["answer"], head.get("after_ms")
    after = None if after_ms is None else timedelta(milliseconds=after_ms)
    if kind == "Retry":
        return Retry(after, head["reason"])
    if kind == "Snooze":
        assert after is not None
        return Snooze(after)
    if kind == "Leave":
        return Leave(head["wait_id"])
    return Fail(head["reason"]) if kind == "Fail" else Discard(head["reason"])
