"""Training jobs: what a run is trained from, how, and what is kept of it."""
