"""Who a client is and what it may do: authentication as plug-ins, authorisation, and what guards the listeners before
both.
"""
