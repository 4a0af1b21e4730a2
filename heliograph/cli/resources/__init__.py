"""Commands about what an instance holds: tenants, namespaces, topics, policies, transactions, usage. They only ask
REST.
"""
