-- Processes of versions that do not know rules refuse the schema from now on.
select {schema}.use_rules()
