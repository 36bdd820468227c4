"""What `longhaul keys`, `projects`, `limits` and `tools` do."""
