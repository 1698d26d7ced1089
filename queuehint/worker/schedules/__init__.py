"""When schedules are due, and how they are fired."""
