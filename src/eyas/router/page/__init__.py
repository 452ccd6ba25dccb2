"""The page of a router at `/`: its backends, what happens to them, and a chat."""
