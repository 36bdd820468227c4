"""The rules of files and uploads, without HTTP."""
