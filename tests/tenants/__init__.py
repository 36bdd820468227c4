"""A trial of a running installation as its operator and two of its tenants, with OpenAI's official client alone."""
