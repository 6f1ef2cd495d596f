-- What operators have asked of workers: the latest order to each of their processes. Creates a table, and locks none: safe while
-- workers run; those of earlier versions take no orders.
create table {schema}.worker_orders (
    instance text collate "C" primary key,
    number int8 generated always as identity,
    asked text not null,
    at int8 not null,
    by_whom text not null,
    reason text not null
);
