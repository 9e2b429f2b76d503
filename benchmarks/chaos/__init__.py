"""Random faults on real processes, and whether the promises held all the same: see docs/benchmarks.rst.

    python -m benchmarks.chaos --minutes 1 --seed 7 --json

`site.py` says what runs, `load.py` what it has to do meanwhile, `faults.py` what goes wrong, `verdict.py` what must
have been true. The seed decides jobs, calls and faults and their order; not what the processes make of them.
"""
