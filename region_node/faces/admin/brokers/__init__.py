"""REST about the region's machines: brokers, bookies, members of the metadata. A tenant's data is elsewhere."""
