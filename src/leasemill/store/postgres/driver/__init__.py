"""The conversation with a server: statements, connections, and the two ways to run steps. Nothing here knows a rule."""
