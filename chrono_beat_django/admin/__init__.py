"""The admin: tenants and jobs to edit, everything that the services write to read.

Pages stay quick whatever the tables hold: lists are read in the order of an index, counted up to a bound, and cost the
same number of statements for a row as for a hundred.
"""
from chrono_beat_django.admin import alerts, executions, jobs, keys, services, tenants

__all__ = ["alerts", "executions", "jobs", "keys", "services", "tenants"]
