"""From a request to the planner to a plan."""
