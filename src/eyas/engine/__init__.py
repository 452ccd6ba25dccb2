"""Who runs when: sequences, pages, scheduler, runner, speculation, the step loop."""
