"""Parts of serving that a server, a router and a client share: breaker, budgets of time, waiting, loops in texts."""
