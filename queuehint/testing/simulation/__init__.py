"""
Deterministic simulation in virtual time: the same seed, the same run.

Workers crash, pause beyond their leases and wake again; requests and replies are lost, doubled and delayed; the clock
of the store jumps, the store restarts without its last steps. After each step all safety properties are checked.
"""

from __future__ import annotations

from queuehint.testing.simulation.faults import FaultPlan
from queuehint.testing.simulation.report import SimulationError
from queuehint.testing.simulation.run import Simulation, simulate

__all__ = ["FaultPlan", "Simulation", "SimulationError", "simulate"]
