"""The commands between regions as bytes. It decides nothing, and knows no client's protocol."""
