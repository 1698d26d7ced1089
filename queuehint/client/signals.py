"""`Signal`: a dependency that is no job, and the job that gives a signal."""

from __future__ import annotations

import hashlib
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import attrs

from queuehint.client.submission import submit
from queuehint.errors import InvalidJobError, JobNotFoundError
from queuehint.handlers.codec import JsonCodec, dump_identified
from queuehint.handlers.conversion.plain_json import check_json
from queuehint.handlers.references import Referable, Reference
from queuehint.handlers.templates import is_name
from queuehint.operations import Get
from queuehint.schema.checks import RETENTION_MAX_MS, check_choice, check_duration, check_optional_duration
from queuehint.values.signal import (
    ON_TIMEOUT,
    SIGNAL_BYTES_MAX,
    WHEN_OF,
    OnTimeout,
    asked_id,
    check_signal_name,
    signal_id,
    signal_spec,
)
from queuehint.values.spec import Dependency, JobSpec, When

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuehint.backends.steps import Steps
    from queuehint.client.handle import Client, InFlow
    from queuehint.handlers.codec import Codec
    from queuehint.handlers.signals.waits import WaitState

_NOT_IN_TEMPLATE = re.compile("[^A-Za-z0-9_-]")


def _name(value: str) -> str:
    return check_signal_name(value)


def _on_timeout(value: OnTimeout) -> OnTimeout:
    return check_choice(value, ON_TIMEOUT, parameter="on_timeout")


@attrs.frozen
class Signal(Referable):
    """
    A signal that a job waits for: ``publish.using(after=[Signal("approved:doc1")])``.

    The job holds no worker and no place while it waits. It goes on when `Scheduler.signal` gives the signal, or at once
    if that was before. The data is in `JobContext.results` by the name of the signal, and `out` stands for it as an
    argument.

    Args:
        name: 1 to 90 bytes, no white space or control characters.
        timeout: how long the job waits at most, counted from its enqueue: a timedelta or seconds, 1 ms to 10 years;
            None for as long as it takes.
        on_timeout: what becomes of the job after that: ``"fail"`` has it FAILED, ``"cancel"`` CANCELED, ``"run"`` lets
            it go on without the data; with the data among its arguments it is canceled.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.

    .. versionadded:: 1.0.0
    """

    name: str = attrs.field(converter=_name)
    timeout: float | timedelta | None = attrs.field(default=None, kw_only=True)
    on_timeout: OnTimeout = attrs.field(default="fail", kw_only=True, converter=_on_timeout)
    timeout_ms: int | None = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "timeout_ms", check_optional_duration(self.timeout, parameter="timeout", least_ms=1))

    @property
    def out(self) -> Any:
        """The data of the signal, as an argument of a job: ``signal.out``, or a part: ``signal.out.by``."""
        return cast("Any", Reference(self.called, self))

    @property
    def called(self) -> str:
        """The name of the signal in templates, with ``_`` for characters that templates do not allow."""
        return self.name if is_name(self.name) else f"_{_NOT_IN_TEMPLATE.sub('_', self.name)}".lstrip("_-") or "_"

    def edges(self, when: When, client: Client, flow: InFlow | None = None) -> Sequence[Dependency]:
        """
        Return the edge of a job that waits for the signal.

        Raises:
            InvalidJobError: *when* is ``"failure"``.
        """
        if when == "failure":
            raise InvalidJobError(f"when='failure' is not supported for signal {self.name!r}, which never fails")
        if self.timeout_ms is None:
            return (Dependency(signal_id(self.name), "success", self.called),)
        when, data = WHEN_OF[self.on_timeout]
        return (Dependency(asked_id(self.name, self.timeout_ms), when, self.called, data),)


def awaited(spec: JobSpec, parent: tuple[str, int]) -> Steps[WaitState]:
    """
    Return the state of a running job's wait for a signal. Begin the wait if there is none.

    Args:
        parent: the id and token of the job.

    Raises:
        LeaseLostError: the job does not run under this token any more.
        JobNotFoundError: the record was deleted meanwhile.
    """
    record = (yield Get((spec.id,))).records[0]
    if record is None:
        yield from submit([spec], parent=parent)
        record = (yield Get((spec.id,))).records[0]
    if record is None:
        raise JobNotFoundError(spec.id)
    return record.state, record.result, record.cause


def given_spec(name: object, data: object, keep: object, codec: Codec) -> JobSpec:
    """
    Return the spec that gives a signal.

    Raises:
        InvalidJobError, InvalidJobTypeError, PayloadError: naming the parameter, the value and the limit.
    """
    name = check_signal_name(name)
    kept_ms = check_duration(keep, parameter="keep", least_ms=1, most_ms=RETENTION_MAX_MS)
    if type(codec) is JsonCodec:
        check_json(data, "data", SIGNAL_BYTES_MAX)
    payload, digests = dump_identified(codec, {"result": data}, {}, bytes_max=SIGNAL_BYTES_MAX)
    identity = tuple([hashlib.sha256(digest).hexdigest() for digest in digests])
    return signal_spec(name, payload, kept_ms, identity).check()
