-- Live leases and kept jobs, by number. Locks their rows, in order: leases, then kept.
with given as materialized (
    select no from unnest({nos}::int8[]) as given (no) order by no
), leased as materialized (
    select lease.no from given
    cross join lateral (select leases.no from {schema}.leases where leases.no = given.no for update) as lease
), kept as materialized (
    select kept.no from given
    cross join lateral (select kept.no from {schema}.kept where kept.no = given.no for update) as kept
)
select (select count(*) from leased), (select count(*) from kept)
