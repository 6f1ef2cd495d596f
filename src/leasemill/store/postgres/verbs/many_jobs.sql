copy {schema}.jobs (no, created_at, priority, id, queue, kind, payload, run_at, delay_us, headers) from stdin (format binary)
