"""The life of a job: its states, the table of jobs, what moves them."""
