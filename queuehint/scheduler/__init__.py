"""The door of an application: one `Scheduler` and its rooms."""
