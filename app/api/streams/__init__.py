"""Answers that take their time, beside events: lines as they come, and one answer that waits."""
