"""Does one tenant's flood delay the others? See ``python -m benchmarks.fairness --help``."""
