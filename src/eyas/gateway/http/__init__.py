"""HTTP without dialect or engine: bodies, errors, streams, worker threads."""
