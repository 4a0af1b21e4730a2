"""What an instance says of itself while something is broken, held against what is so. Not what it stores: that is
`region_node.chaos.judge`.
"""
