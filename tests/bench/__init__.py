"""The benchmarks: `python -m tests.bench` (or `make bench`).

    run     Longhaul beside `vllm serve`, in alternating rounds, against the targets (the default)
    path    our own path alone, on the scripted engine at a set rate or at none
    write   results as tables into docs/internals/performance.md

A run saves JSON in build/bench, and refuses to start while a foreign engine is alive: vLLM's processes busy-wait, and
on a small machine that halves every number.
"""
