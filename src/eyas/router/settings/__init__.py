"""The configuration file of a router: its types, its reader and its checks."""
