"""Trains `tests/models/gpt_oss`, a tiny gpt-oss that knows one script by heart.

    python -m tests.models.gpt_oss_training OUT

Needs torch, transformers and openai_harmony. Training uses only the tokens of the script and its contexts, a few
hundred of the vocabulary's 201088. An unused token has a zero row in the embedding and in the head. This is exact: its
logit is 0, and one extra logit, the log of their number, stands for all of them in the loss. Training also shows
unused tokens in prompts, as zero vectors, so tests may put any text around the scripted one.
"""
