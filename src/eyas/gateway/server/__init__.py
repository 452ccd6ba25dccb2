"""What one server has: its engine, options, mailroom and step reports."""
