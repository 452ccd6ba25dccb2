"""Settings of the bot: one strict YAML file, which is read again when it changes."""
