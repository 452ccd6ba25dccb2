"""Operation of a router: metrics, log lines, alert rules, the status API, keys and limits."""
