"""What runs in an engine's process, also in a vLLM server of others: its file needs no other of Longhaul's."""
