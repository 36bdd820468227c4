"""Chat completions: a request becomes one for a response, and its response and events a completion and its chunks."""
