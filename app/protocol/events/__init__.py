"""The pure event machine: a model's deltas go in, numbered events come out."""
