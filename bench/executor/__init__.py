"""The executor: whom it pays, how fast it is, what it survives, and its clock."""
