"""How a model's answers are written and read: vLLM's parsers, what they are told, and where thoughts begin and end."""
