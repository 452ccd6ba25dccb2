"""Start-up, from settings to a ready engine: loading, memory, warm-up."""
