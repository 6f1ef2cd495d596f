-- psql "$DATABASE_URL" -v job=order-7 -v token=… -v account=ann -v cents=500 -f deposit.sql
\set ON_ERROR_STOP on
begin;
update balance set cents = cents + :cents where account = :'account';
select leasemill.commit(:'job', :'token', jsonb_build_object('paid', :cents));
commit;  -- fails with LM001 if the lease is lost by now: then nothing has happened
