"""Where jobs are remembered: one protocol, several stores."""
