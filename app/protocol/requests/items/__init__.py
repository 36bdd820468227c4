"""The items of `input`."""
