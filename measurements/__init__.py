"""What was measured beside the runs, and what measured it: `python -m measurements.NAME`."""
