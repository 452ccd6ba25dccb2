"""The planner: from a question to a plan."""
