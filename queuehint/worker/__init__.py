"""A worker: claim, run, settle, renew, stop, fire schedules."""
