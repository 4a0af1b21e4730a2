"""Commands about processes: brokers, bookies, members of the metadata, scaling. They only ask REST."""
