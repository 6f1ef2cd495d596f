-- What an operator did to many jobs is one action: how many they were, since when, and the next after the first of them. Changes no row,
-- and locks the table for a moment: safe while workers run. Programs of earlier versions go on recording an action for each job.
alter table {schema}.actions
    add column count int8 not null default 1,
    add column first_at int8,
    add column others text[] not null default '{{}}';
