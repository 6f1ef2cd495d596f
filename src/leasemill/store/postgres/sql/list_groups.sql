-- The ids of groups after one of them; `open_only`: of those that are not over; `parent`: of those in that group.
select groups.id from {schema}.groups
where groups.id > {after}::text collate "C" and not ({open_only}::bool and groups.is_over)
    and ({parent}::text is null or groups.parent = {parent}::text)
order by groups.id limit {limit}::int8
