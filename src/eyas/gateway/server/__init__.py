"""State of one server: its engine, options, event delivery and step reports."""
