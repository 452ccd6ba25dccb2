"""Words that every other package shares: types, errors, configuration, the Harmony text format. No torch here."""
