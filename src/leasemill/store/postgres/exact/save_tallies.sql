-- How the numbers of succeeded jobs change.
insert into {schema}.tallies (queue, succeeded)
select queue, succeeded from unnest({queue}::text[], {succeeded}::int8[]) as given (queue, succeeded)
