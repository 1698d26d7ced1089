"""What a producer holds: jobs, options, submissions, handles, flows."""
