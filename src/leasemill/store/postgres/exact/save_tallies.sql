-- How the numbers of succeeded jobs change.
insert into leasemill.tallies (queue, succeeded)
select queue, succeeded from unnest(%(queue)b::text[], %(succeeded)b::int8[]) as given (queue, succeeded)
