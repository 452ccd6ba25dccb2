"""Host state of one sequence: tokens, pages, constraints and their masks."""
