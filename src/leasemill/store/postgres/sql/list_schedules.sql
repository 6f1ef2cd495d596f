-- A page of schedules by name; `names`: these alone, if it is not NULL.
select record from {schema}.schedules
where name > {after}::text and ({names}::text[] is null or name = any ({names}::text[]))
order by name limit {limit}::int8
