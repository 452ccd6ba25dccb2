"""Comparing answers with and without speculation: are they the same, and where not, is it a near tie or a defect."""
