"""REST about tenants, namespaces, their policies, grants, and quotas. What obeys a policy is elsewhere."""
