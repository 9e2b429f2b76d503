"""Whether a tenant ever runs more than its cap while its workers are killed, on real processes: see docs/benchmarks.rst.

    python -m benchmarks.caps --kills 1000 --seed 1 --json
"""
