-- Keeps these groups from being sealed before the transaction ends; waits for who is sealing one.
select groups.id from {schema}.groups where groups.id = any ({groups}::text[]) order by groups.id for key share
