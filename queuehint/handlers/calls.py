"""Calls of tasks as values, and the facts about tasks with which a running job enqueues them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

import attrs

from queuehint.schema.checks import sized

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

P = ParamSpec("P")
H_co = TypeVar("H_co", covariant=True)


@attrs.frozen
class Call(Generic[P]):
    """
    A deferred call of a task, for `Job.enqueue_many`. Made by `Job.call`.

    Args:
        task: the name of the task.
        arguments: by parameter name, defaults left out.
    """

    task: str
    arguments: dict[str, Any] = attrs.field(repr=sized)


class Enqueues(Protocol[P, H_co]):
    """A `Job` as seen by the context of another job, for one call."""

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> H_co:
        """Enqueue a call. Return its handle."""

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> H_co:
        """Enqueue a call. Return its handle."""


class EnqueuesMany(Protocol[P, H_co]):
    """A `Job` as seen by the context of another job, for many calls."""

    async def enqueue_many(self, calls: Iterable[Call[P] | tuple[Any, ...] | dict[str, Any]]) -> Sequence[H_co]:
        """Enqueue many calls. Return their handles."""

    def enqueue_many_sync(self, calls: Iterable[Call[P] | tuple[Any, ...] | dict[str, Any]]) -> Sequence[H_co]:
        """Enqueue many calls. Return their handles."""
