"""`file:` a folder with a write-ahead log, shared by any number of local processes. No server.

format    bytes: frames, segment headers                      (docs/log-format.md)
disk      the operating system: files, the lock, the control page
manifest  which files make the log
log       append, sync, rotate, read, recover
snapshot  the state at a position, so that opening stays short
clock     one clock for every process of a boot
pipeline  callers of one process share an append and a sync
watch     learning that others wrote
store     the Store: a replica of the state, decided under the lock
"""
