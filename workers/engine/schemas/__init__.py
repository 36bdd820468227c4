"""JSON schemas as grammars of exactly what they allow."""
