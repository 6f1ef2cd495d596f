-- What time it is.
select {schema}.clock({now}::int8)
