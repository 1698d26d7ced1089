"""The life of a job: its states, the job table, the transitions."""
