"""The served models, and how clients see them."""
