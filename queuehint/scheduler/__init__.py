"""The application's interface: one `Scheduler` and its parts."""
