"""The real engine: vLLM's AsyncLLM. The only package that imports vLLM; tried with 0.32.

Import it by `make_engine`, which sets the environment that vLLM's import reads.
"""
