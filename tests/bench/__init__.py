"""The benchmarks: `python -m tests.bench` (or `make bench`).

    run     Longhaul beside bare vLLM and `vllm serve`, in alternating rounds, against the targets (the default)
    path    our own path alone, on the scripted engine at a set rate or at none
    scale   how cost grows, one measurement at a time
    fleet   what a worker costs the parts that workers share
    gpu     Qwen3-8B and gpt-oss-20b by shape, on a GPU
    write   results as tables and plots into docs/performance.md and docs/scaling.md

All but `write` save JSON in build/bench. A run refuses to start while a foreign engine is alive: vLLM's processes
busy-wait, and on a small machine that halves every number.
"""
