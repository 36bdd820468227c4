"""Chat completions: a request becomes one for a response; its response and events become an answer and chat chunks."""
