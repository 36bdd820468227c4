"""What a process counts and times, and how Prometheus gets it. The fleet is rows (app/store/operations/snapshot.py)."""
