"""The real engine: vLLM's AsyncLLM. Import it through `workers.engine.make_engine`, which sets vLLM's environment."""
