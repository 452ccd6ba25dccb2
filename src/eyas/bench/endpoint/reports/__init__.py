"""Reports of a run against an endpoint: Markdown, JSON, one HTML file, and what changed between two runs."""
