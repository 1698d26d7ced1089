"""Who leads a journal: the right to write it, how that is kept, and who comes next."""
