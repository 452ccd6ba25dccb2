"""HTTP with no dialect and no engine: bodies, errors, streams, worker threads."""
