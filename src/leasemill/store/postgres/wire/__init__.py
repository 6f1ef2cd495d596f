"""The conversation with a server: connections, statements, notifications. Nothing here knows a rule of queueing."""
