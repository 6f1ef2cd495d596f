-- The ids of groups after one of them; `open_only`: of those that are not over.
select groups.id from {schema}.groups
where groups.id > {after}::text collate "C" and not ({open_only}::bool and groups.is_over)
order by groups.id limit {limit}::int8
