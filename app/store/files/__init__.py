"""Files: what is there of them, and their bytes in parts and blocks of 1 MiB."""
