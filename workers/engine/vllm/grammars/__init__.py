"""Grammars, and forcing committed tokens through the sampler."""
