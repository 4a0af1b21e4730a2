"""REST below /heliograph/v1/dr. Rules are in `region_node.dr`."""
