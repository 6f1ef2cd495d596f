-- N4, N6: it becomes the head of its lane; a lane without one is forgotten.
gone as (
    delete from {schema}.waiting where ctid = any (array(select at_ctid from next))
), headed as (
    update {schema}.lanes set head = next.no, head_seq = next.seq, is_blocked = false
    from next where lanes.ctid = next.lane_ctid
), idle as (
    delete from {schema}.lanes where ctid = any (array(select lane_ctid from given where no is null))
)
