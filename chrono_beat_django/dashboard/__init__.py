"""Pages under ``/chrono/`` on which staff sees how late, how full and how crowded the deployment is."""
