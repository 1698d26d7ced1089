"""State machines of operations: the engine beside its model, and a backend beside both."""

from queuehint.testing.state_machine.backend import BackendStateMachine

__all__ = ["BackendStateMachine"]
