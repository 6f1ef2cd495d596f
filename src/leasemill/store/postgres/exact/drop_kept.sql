-- The caller holds the rows' locks. Returns how many were there.
with gone as (delete from {schema}.kept where no = any ({no}::int8[]) returning no)
select count(*) from gone
