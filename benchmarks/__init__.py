"""Benchmarks: each a command, each with its peer or its baseline in the same run. See ``docs/benchmarks.rst``."""
