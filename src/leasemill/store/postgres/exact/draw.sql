-- New numbers: of jobs and places, of fences, of turns in a line.
select
    array(select nextval('leasemill.seq') from generate_series(1, %(seqs)b::int8)) as seqs,
    array(select nextval('leasemill.fence') from generate_series(1, %(fences)b::int8)) as fences,
    array(select nextval('leasemill.turn') from generate_series(1, %(turns)b::int8)) as turns
