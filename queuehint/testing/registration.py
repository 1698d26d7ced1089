"""What Hypothesis calls when it is imported: strategies for the types of queuehint, for `st.from_type`."""

from __future__ import annotations


def register() -> None:
    """Register strategies for public types; each is made when it is first drawn from."""
