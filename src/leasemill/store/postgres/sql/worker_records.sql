-- Every worker's record.
select id, record from leasemill.workers order by id
