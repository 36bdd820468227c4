"""What a process counts and times, and how Prometheus gets it. The fleet's figures are rows: `app/store/queue/fleet.py`."""
