"""A bookie's directories, their cookies, their space, and their start. It answers nobody."""
