"""Places and permits for plain code."""
