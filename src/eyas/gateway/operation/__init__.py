"""What operators need: keys, limits, metrics, logs, traces, the OpenAPI file."""
