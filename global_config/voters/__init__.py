"""Who decides: a witness as a third voter, and one that goes on where most are lost."""
