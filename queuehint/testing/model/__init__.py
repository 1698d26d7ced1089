"""The reference model: the rules as the simplest possible program. See `reference`."""

from queuehint.testing.model.jobs import Actor
from queuehint.testing.model.reference import ReferenceModel

__all__ = ["Actor", "ReferenceModel"]

if not __debug__:
    raise RuntimeError("queuehint.testing checks by assert statements: run Python without -O and PYTHONOPTIMIZE")
