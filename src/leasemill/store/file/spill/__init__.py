"""Jobs that wait or have succeeded, kept on disk instead of in memory, behind the mappings and orders of a state."""
