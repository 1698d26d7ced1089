"""
What Hypothesis calls when it is imported.

It is no part of the package, whose import would make every import of Hypothesis three times as long.
"""

import sys


def register() -> None:
    """Register the types of queuehint if it is there; `queuehint.__init__` does so if it comes second."""
    if "queuehint" in sys.modules:
        from queuehint.testing.registration import register as register_types

        register_types()
