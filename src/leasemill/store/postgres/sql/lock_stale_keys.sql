-- Locks those of these keys that nobody else has locked. Returns them.
select keys.key from {schema}.keys where keys.key = any ({keys}::text[]) order by keys.key for update skip locked
