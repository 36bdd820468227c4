"""The benchmarks: `python -m tests.bench` (or `make bench`).

    run        Longhaul beside bare vLLM and `vllm serve`, in alternating rounds, against the targets (the default)
    path       our own path alone, on the scripted engine at a set rate or at none
    fleet      what a worker costs the parts that workers share
    fair       whether the queue is fair, and what a long one costs
    placement  what placement is worth to agents on several workers
    write      results as tables into docs/internals/performance.md and scaling.md

All but `write` save JSON in build/bench. A run refuses to start while a foreign engine is alive: vLLM's processes
busy-wait, and on a small machine that halves every number.
"""
