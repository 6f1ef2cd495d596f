-- Whether a claim with this request id was granted leases.
select exists (select from {schema}.requests where id = {request_id}::text)
