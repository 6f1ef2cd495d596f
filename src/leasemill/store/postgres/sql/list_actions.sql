-- O8: what operators did, the latest first.
select actions.at, actions.verb, actions.by_whom, actions.target, actions.reason,
    actions.count, actions.first_at, actions.others
from {schema}.actions order by actions.number desc limit least({limit}::int8, 1000)
