"""The rules of files, without HTTP."""
