"""How fast it is: `python -m tests.bench` (or `make bench`).

    run     Longhaul beside bare vLLM and `vllm serve`, in alternating rounds, against the targets (the default)
    path    our own path alone, on the scripted engine at a set rate or at none
    scale   how cost grows, one measurement at a time
    write   what was measured, as tables and plots, into docs/performance.md

All but `write` leave JSON in build/bench. A run refuses to start while somebody else's engine is alive: vLLM's
processes busy-wait, and on a small machine that halves every number.
"""
