"""HTTP: one dialect a file, streaming, errors. Never imports torch."""
