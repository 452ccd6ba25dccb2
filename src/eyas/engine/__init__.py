"""The engine: sequences, pages, scheduler, runner, speculation, the step loop."""
