"""What a field of a value may hold, said once; the checks compiled from it, and the checks of user input."""
