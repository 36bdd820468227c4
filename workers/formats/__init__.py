"""Items to a prompt, and tokens to deltas, in the way that a model was trained on."""
