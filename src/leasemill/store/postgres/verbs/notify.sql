-- Workers look again when this transaction has ended: claims passed over jobs that it had locked.
select pg_notify({channel}::text, '')
