"""How `config/demo` was made: a tiny chat model that knows one script by heart.

    python -m tests.models.demo OUT

Needs torch, transformers and tokenizers; no part of the running service imports this package.
"""
