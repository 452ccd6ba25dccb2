"""HTTP: a folder for each vendor's dialect, streaming, errors. Never imports torch."""
