"""The producer's side: jobs, options, submissions, handles, flows."""
