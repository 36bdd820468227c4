"""Work on what callers sent that may take too much: in processes with limits, which may die of it."""
