-- I8: of more than 100 executions the first and the latest 99 are kept, the live one among them.
delete from {schema}.executions
where no = any ({nos}::int8[]) and slot > 1
    and slot <= ({attempts}::int8[])[array_position({nos}::int8[], no)] - 99
returning no
