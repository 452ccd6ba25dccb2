"""Completions, with `/tokenize` and `/detokenize`."""
