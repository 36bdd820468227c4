"""Who is measured: each a set of processes that can be asked, accounted for, and held still while others are."""
