"""`leasemill serve`: a store for programs that cannot reach the database or the folder. A codec and a table of
statuses.

It has no rule of its own: every command goes to the store as it came, and the store's answer goes back.
"""
