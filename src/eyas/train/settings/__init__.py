"""Settings of a training run: one strict YAML file."""
