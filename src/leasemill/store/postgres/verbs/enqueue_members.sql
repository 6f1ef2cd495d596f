-- enqueue, for jobs of groups (B1): nothing is inserted if one of them is new and its group is unknown or sealed, unless
-- the group is that of the job that adds it (B5); then the groups are returned.
-- Shares a lock on the groups' keys, in order, before it inserts: a seal waits for it, or it waits for the seal and sees it.
with {_given_jobs}, opened as materialized (
    select open.id
    from (select distinct group_id from given where group_id is not null order by group_id) as named
    cross join lateral (
        select groups.id from {schema}.groups
        where groups.id = named.group_id and (groups.sealed_at is null or groups.id = (
            select jobs.group_id from {schema}.jobs where jobs.id = {member}::text
        ))
        for key share
    ) as open
), refused as materialized (
    select given.group_id from given
    where given.group_id is not null and given.group_id not in (select opened.id from opened)
        and not exists (select from {schema}.jobs where jobs.id = given.id)
), inserted as (
    {_insert_jobs}
    where not exists (select from refused)
    order by turn
    on conflict on constraint job_id do nothing
    {_returning_jobs}
), {_placed}, joined as (
    insert into {schema}.group_joins (group_id, count)
    select group_id, count(*) from inserted where group_id is not null group by group_id
), {_notified}
select count(*) as count,
    case when count(*) < cardinality({ids}::text[]) then array_agg(id) end as ids,
    (select count from notified) as notified,
    array(select distinct group_id from refused order by group_id) as refused_groups
from inserted
