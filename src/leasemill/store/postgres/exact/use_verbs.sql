-- Processes of versions that do not know these verbs refuse the schema from now on.
select {schema}.use_verbs({since}::int8::int4)
