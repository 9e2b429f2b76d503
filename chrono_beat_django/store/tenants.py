"""What the engines have in common about tenants."""

OVERLAP_US = 5_000_000
"""For how long a change is told again, in microseconds: a transaction commits later than it dates its rows."""
