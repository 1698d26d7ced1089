"""What plain code holds: places and permits."""
