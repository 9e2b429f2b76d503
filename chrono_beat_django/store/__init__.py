"""The database behind :class:`chrono_beat.ports.JobStore`."""
