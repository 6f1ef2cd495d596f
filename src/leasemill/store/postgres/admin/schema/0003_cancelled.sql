-- CANCELLED is a state of its own, and who cancelled a job is kept with it.
alter table {schema}.kept drop constraint kept_state;
update {schema}.kept set state = 'cancelled' where is_cancelled;
alter table {schema}.kept
    drop column is_cancelled,
    add constraint kept_state check (state in ('failed', 'dead') or (state = 'cancelled' and not blocks_lane));

create table {schema}.cancellations (
    no int8 primary key,
    at int8 not null,
    by_whom text not null,
    reason text not null
);

create or replace view {schema}.outbox as
select jobs.id,
    case when leases.no is not null then 'PROCESSING'
        when kept.state = 'failed' then 'FAILED'
        when kept.state = 'dead' then 'DEAD_LETTER'
        when kept.state = 'cancelled' then 'CANCELLED'
        when ended.no is not null then 'COMPLETED'
        else 'PENDING' end as status,
    'epoch'::timestamptz + leases.expires_at * interval '1 microsecond' as locked_until,
    leases.token as lock_token,
    'epoch'::timestamptz + jobs.created_at * interval '1 microsecond' as created_at,
    jobs.queue, jobs.kind, jobs.lane as aggregate, jobs.payload
from {schema}.jobs
left join {schema}.leases on leases.no = jobs.no
left join {schema}.kept on kept.no = jobs.no
left join {schema}.executions as ended on ended.no = jobs.no and ended.slot = 0
where jobs.lane_offset is null;
