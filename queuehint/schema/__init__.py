"""The declared kinds of the fields of values, the checks compiled from them, and the checks of user input."""
