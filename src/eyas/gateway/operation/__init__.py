"""Operation of a server: keys, limits, metrics, logs, traces, the OpenAPI file."""
