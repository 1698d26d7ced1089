"""The rules as the plainest program that is obviously right: what every backend must answer."""

from queuehint.testing.model.reference import ReferenceModel

__all__ = ["ReferenceModel"]
