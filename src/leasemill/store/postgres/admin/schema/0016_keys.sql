-- Keys of clients of `leasemill serve`: a digest of each, never the key. (The table keys is that of unique jobs.) Creates a
-- table, and locks none: safe while workers run.
create table {schema}.access_keys (
    id text collate "C" primary key,
    name text not null,
    digest bytea not null,
    roles text[] not null,
    queues text[] not null,
    created_at int8 not null,
    created_by text not null,
    expires_at int8,
    revoked_at int8,
    revoked_by text,
    last_used_at int8,
    constraint access_key_roles check (cardinality(roles) > 0),
    constraint access_key_queues check (cardinality(queues) > 0),
    constraint access_key_revoked check ((revoked_at is null) = (revoked_by is null))
);
create unique index access_key_name on {schema}.access_keys (name) where revoked_at is null;
