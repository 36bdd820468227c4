"""Items to a prompt, and tokens to deltas, in the format that a model was trained on."""
