"""Descriptions of steps: one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from queuehint import operations as op
from tests.simulation.world import Step


def told(step: Step) -> str:
    """Return the description of a step as one line."""
    at_ms, kind, *rest = step
    return f"{at_ms / 1000:9.3f} s  {_TELL[kind](*rest)}"


def _tell_send(key: int, place: int, what: str, *args: Any) -> str:
    if what == "exchange":
        limit, outcomes = args
        settled = ", ".join(" ".join((job_id, str(kind).lower(), *rest)) for job_id, kind, _, *rest in outcomes)
        parts = [f"settles {settled}"] * bool(outcomes) + [f"claims up to {limit}"] * bool(limit)
        return f"client {place} sends #{key}: {' and '.join(parts) or 'exchanges'}"
    if what == "renew":
        return f"client {place} sends #{key}: renews its leases"
    return f"client {place} sends #{key}: {_told_operation(args[0])}"


def _told_operation(operation: op.Operation[Any]) -> str:
    if isinstance(operation, op.Enqueue):
        which = "a further part" if operation.is_further else "a part"
        part = f" as {which} of {operation.staged}" if operation.staged is not None else ""
        return f"enqueues {'; '.join(_told_spec(spec) for spec in operation.jobs)}{part}"
    if isinstance(operation, op.Commit):
        return f"commits {operation.staged}"
    if isinstance(operation, op.Tick):
        return "ticks"
    if isinstance(operation, op.Redrive) and operation.waiting:
        return f"makes {', '.join(operation.ids)} due"
    if isinstance(operation, op.Redrive):
        return f"redrives {', '.join(operation.ids)}{' and what is downstream' if operation.downstream else ''}"
    kind: Any = type(operation)
    fields = {field.name: getattr(operation, field.name) for field in attrs.fields(kind)}
    return f"{kind.__name__} {', '.join(f'{name}={value!r}' for name, value in fields.items() if value)}"


def _told_spec(spec: Any) -> str:
    claims = "+".join(
        f"{'/'.join(claim.path) or 'root'}{'' if claim.mode == 'exclusive' else ' shared'}" for claim in spec.claims
    )
    after = f" after {','.join(edge.id for edge in spec.depends_on)}" if spec.depends_on else ""
    later = f" in {spec.delay_ms} ms" if spec.delay_ms else ""
    return f"{spec.id} at {claims or 'no place'}{after}{later}"


_TELL: dict[str, Callable[..., str]] = {
    "send": _tell_send,
    "deliver": "#{} arrives".format,
    "answer": "the answer to #{} arrives".format,
    "crash": "client {} dies and is started anew".format,
    "pause": "client {} stands still".format,
    "wake": "client {} goes on".format,
    "clock": "the clock of the store is set by {} ms".format,
    "take_over": "another process leads, with all that was done, and no answer on its way arrives (an heir: {})".format,
    "restart": "the store is started anew without its last {} steps".format,
}
