"""How `tests/models/gpt_oss` was made: a tiny gpt-oss that knows one script by heart.

    python -m tests.models.gpt_oss_training OUT

Needs torch, transformers and openai_harmony. Training sees only the tokens that the script and its contexts use,
some hundreds of the vocabulary's 201088: an unused token has a zero row in the embedding and in the head. That is
exact: its logit is 0, and the loss counts all of them by one extra logit, log(how many there are). In a prompt an
unused token is the zero vector, which training shows as well: tests may put any text around the scripted one.
"""
