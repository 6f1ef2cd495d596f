"""The access rules of keys. Pure: they ask for what must be looked up, and fetch nothing themselves.

A key has roles (`roles`) and a scope of queues (`scope`). What a client of a key leases is bound to the key by its name
(`names`), so that nothing else can report on it. `steps` puts a command together with all that.
"""
