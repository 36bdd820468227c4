"""A vLLM server elsewhere as an engine, by its token route: token ids in, token ids out."""
