"""What a job file says, and the queries that run by it. It starts no process and needs no Spark to be read."""
