"""What each page of the admin costs with many jobs and executions: ``python -m benchmarks.admin --json``."""
