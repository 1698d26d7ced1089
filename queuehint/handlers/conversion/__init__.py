"""Values of an annotation as JSON and back, and what of them a release knows."""
