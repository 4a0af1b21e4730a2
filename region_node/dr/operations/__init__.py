"""Switchover, failover, rejoin, drill, as steps. They change leadership only through `dr.leadership`."""
