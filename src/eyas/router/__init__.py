"""One address in front of many backends: our own server and other engines, with queues, breakers and fallback."""
