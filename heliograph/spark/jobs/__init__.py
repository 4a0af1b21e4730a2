"""Jobs that ship: `[[query]] job = "NAME"` in a job file runs `start` of the module of that name here. Source:
docs/spark.md, "Jobs that ship".
"""
