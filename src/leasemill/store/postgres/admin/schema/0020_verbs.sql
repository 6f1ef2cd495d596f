-- Called when what a job went through is first recorded by a verb that earlier versions do not know, with the first version of
-- the tables that knows it. As with rules, an earlier one that opens the schema from then on misses its own migrations, and
-- refuses. The latest always stays. Creates a function, and locks no table: safe while workers run.
create function {schema}.use_verbs(since int4) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp as $use_verbs$
    delete from {schema}.migrations
    where version < since and version < (select max(latest.version) from {schema}.migrations as latest)
$use_verbs$;
