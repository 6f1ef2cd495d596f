-- No function that runs with its owner's rights is for everybody. use_rules and lower_watermarks are for roles that enqueue or run workers:
-- here those that may insert into jobs; docs/postgres.md has the grants for others. use_verbs runs with its caller's rights: whoever reports
-- a death may delete from migrations anyway. Locks no table: safe while workers run.
do $rights$
declare
    grantee text;
begin
    for grantee in
        select distinct one.grantee::regrole::text
        from pg_catalog.pg_class as found cross join lateral aclexplode(found.relacl) as one
        where found.oid = '{schema}.jobs'::regclass and one.privilege_type = 'INSERT' and one.grantee not in (0, found.relowner)
    loop
        execute format('grant execute on function {schema}.use_rules(), {schema}.lower_watermarks(text[], int8[], int8[]) to %s', grantee);
    end loop;
end
$rights$;

revoke all on function {schema}.use_rules(), {schema}.lower_watermarks(text[], int8[], int8[]) from public;
alter function {schema}.use_verbs(int4) security invoker;
