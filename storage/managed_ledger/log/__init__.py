"""One topic's log: append, read, roll over, cursors, repair. Everything of one topic's storage meets here."""
