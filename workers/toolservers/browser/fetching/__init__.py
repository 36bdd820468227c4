"""Pages by HTTP from addresses that strangers name, without reaching what is not public."""
