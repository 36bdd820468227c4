"""All SQL: the tables, and every statement that reads or writes them."""
