"""Redis Functions: the scripts as one library, and the choice between it and single scripts."""
