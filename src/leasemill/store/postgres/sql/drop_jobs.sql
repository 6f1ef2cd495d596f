-- O5, O7, N10: jobs that have ended are forgotten, with all that was kept of them. Returns how many.
with executions_gone as (
    delete from leasemill.executions where no = any (%(no)b::int8[])
), refusals_gone as (
    delete from leasemill.refusals where no = any (%(no)b::int8[])
), marks_gone as (
    delete from leasemill.marks where no = any (%(no)b::int8[])
), kept_gone as (
    delete from leasemill.kept where no = any (%(no)b::int8[])
), gone as (
    delete from leasemill.jobs where no = any (%(no)b::int8[]) returning no
)
select count(*) from gone
