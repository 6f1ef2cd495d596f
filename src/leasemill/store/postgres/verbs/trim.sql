-- I8: of more than 100 executions the first and the latest 99 are kept, the live one among them.
delete from leasemill.executions
where no = any (%(nos)b::int8[]) and slot > 1
    and slot <= (%(attempts)b::int8[])[array_position(%(nos)b::int8[], no)] - 99
