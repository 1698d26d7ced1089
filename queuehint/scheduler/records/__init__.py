"""Records of jobs: listings, queries, exports."""
