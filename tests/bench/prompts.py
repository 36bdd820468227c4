"""The prompts."""

SHORT = "Tell me a story."
SCRIPT = "/say The night train crosses the mountains with forty wagons of apples. "
"""For the scripted engine, which says it again and again where it ignores the end."""
