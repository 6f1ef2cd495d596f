"""How commands travel over HTTP: which there are, how they are written, and what the answers' statuses mean.

Pure, and the same for both ends: the server (`leasemill.server`) and the store that asks it (`leasemill.store.http`).
Nothing here opens a connection.
"""
