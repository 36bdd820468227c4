"""The rules of responses and conversations, without HTTP."""
