"""Who may do what with which key. Pure: what must be looked up is asked for, and never fetched here.

A key has roles (`roles`) and a scope of queues (`scope`). What a client of a key leases is bound to the key by its name
(`names`), so that nothing else can report on it. `steps` puts a command together with all that.
"""
