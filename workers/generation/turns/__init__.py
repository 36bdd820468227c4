"""The turns of a response: prompt, tokens, calls."""
