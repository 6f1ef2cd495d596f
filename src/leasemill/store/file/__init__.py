"""`file:` a folder with a write-ahead log, shared by any number of local processes. No server.

format       bytes: frames, segment headers                      (docs/log-format.md)
disk         the operating system: files, the lock, the control page; folder: making it
control      the numbers on the control page
manifest     which files make the log
reader       where a process is in the log, and reading on
writer       syncs, the manifest, new segments
log          lock, append, rotate
space        room for the log: the next segment, a full disk
recovery     torn tails, failed syncs, the first look after a boot
snapshot     the state at a position, so that opening stays short; build: in a process of its own
clock        one clock for every process of a boot
replica      the state in this process, loaded and caught up
batch        deciding a batch of calls under the lock
maintenance  spare segments and snapshots, beside the calls
pipeline     callers of one process share an append and a sync; ticket: one of their calls
watch        learning that others wrote; waiters: for those who wait for a job's end or a cancellation
store        the Store
inspect      looking at a log without touching it
"""
