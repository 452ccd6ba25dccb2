"""From settings to an engine that is ready: loading, memory, warm-up."""
