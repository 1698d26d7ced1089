"""Records of jobs: listings, questions, exports."""
