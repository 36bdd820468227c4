"""Everything on one machine: the embedded services and the supervisor of all processes."""
