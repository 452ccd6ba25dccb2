"""Known issues, tuning rules and guides as predicates over a plan."""
