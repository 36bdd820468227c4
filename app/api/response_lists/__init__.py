"""Lists of responses, as clients and operators ask for them and see them."""
