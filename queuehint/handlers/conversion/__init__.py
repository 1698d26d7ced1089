"""Values of an annotation as JSON and back, and the part of them known to a release."""
