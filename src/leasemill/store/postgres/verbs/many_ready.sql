copy {schema}.ready (available_at, seq, rank, queue) from stdin (format binary)
