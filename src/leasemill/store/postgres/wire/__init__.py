"""The conversation with a server: connections, cursors and statements. Nothing here knows a rule of queueing."""
