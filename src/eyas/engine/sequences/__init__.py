"""What the host knows of one sequence: tokens, pages, constraints and their masks."""
