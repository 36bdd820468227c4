"""The operators' views of responses, and their actions on many at once."""
