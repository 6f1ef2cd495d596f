-- Forgets a worker. Returns it, if it was there.
delete from leasemill.workers where id = %(id)b::text returning id
