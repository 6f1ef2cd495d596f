-- The tallies so far become one row for each queue.
with gone as (
    delete from {schema}.tallies returning queue, succeeded
)
insert into {schema}.tallies (queue, succeeded)
select queue, sum(succeeded) from gone group by queue having sum(succeeded) <> 0
returning queue
