"""Files: what is there of them, their bytes in blocks of 1 MiB, and uploads in parts."""
