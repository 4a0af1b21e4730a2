"""The processes of a region: what clients and operators speak to, and everything that stands behind it."""
