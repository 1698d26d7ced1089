"""What stores of a journal share: the engine of the process that leads, its guests, snapshots, recovery."""
