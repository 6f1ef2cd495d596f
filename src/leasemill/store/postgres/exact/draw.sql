-- New numbers: of jobs and places, of fences, of turns in a line.
select
    array(select nextval('{schema}.seq') from generate_series(1, {seqs}::int8)) as seqs,
    array(select nextval('{schema}.fence') from generate_series(1, {fences}::int8)) as fences,
    array(select nextval('{schema}.turn') from generate_series(1, {turns}::int8)) as turns
