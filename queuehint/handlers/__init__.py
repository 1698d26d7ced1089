"""A function as a task: its signature, place, arguments, context and answers."""
