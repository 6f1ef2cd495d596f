-- Seal, second step: waits for every transaction that has added members to the group, and keeps others from it.
select groups.id from {schema}.groups where groups.id = any ({groups}::text[]) for update
