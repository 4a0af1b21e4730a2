"""Table stores: where keyed rows are kept, each with columns of several writers. `rows` says what a store promises;
`choice` makes one from options.
"""
