-- B1, B5: which of these groups take no members, but those that one of their own adds; locks nothing.
select given.id
from unnest({groups}::text[]) as given (id)
where not exists (
    select from {schema}.groups
    where groups.id = given.id and (groups.sealed_at is null or groups.id = (
        select jobs.group_id from {schema}.jobs where jobs.id = {member}::text
    ))
)
