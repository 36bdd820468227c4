"""How messages are shaped for a chat template, and the proof that it shows every word of them."""
