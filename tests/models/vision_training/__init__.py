"""Trains `tests/models/vision`, a tiny model that sees: it says which shape in which colour a picture shows.

    python -m tests.models.vision_training OUT

Needs torch, transformers, tokenizers and Pillow. The service does not import this package.
"""
