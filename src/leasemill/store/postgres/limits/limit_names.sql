-- The names of the limits under which these queues are claimed.
select distinct name from {schema}.limit_queues where queue = any ({queues}::text[])
