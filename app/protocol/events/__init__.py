"""The pure event machine: what a model says goes in, numbered events come out."""
