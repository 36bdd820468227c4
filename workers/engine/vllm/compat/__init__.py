"""Every use of a vLLM internal: names, attributes and messages that vLLM does not promise to its users.

The other modules of workers/engine/vllm import vLLM's documented names only (`vllm`, `vllm.config`, `vllm.exceptions`,
`vllm.inputs`, `vllm.lora.request`, `vllm.sampling_params`) and call these modules for the rest. A parameter or variable
that holds a vLLM object is annotated with its class: tests/engine/test_compat.py reads off what is used, and fails with
the name of what a new version has changed.
"""
