-- Keys that were taken in this transaction for jobs that were not made are nobody's.
delete from {schema}.keys where no = any ({nos}::int8[]) and key = any ({keys}::text[])
returning key
