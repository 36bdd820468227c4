"""Trains `config/demo`, a tiny chat model that knows one script by heart.

    python -m tests.models.demo OUT

Needs torch, transformers and tokenizers. The service does not import this package.
"""
