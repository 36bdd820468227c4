"""The models of the tests, and the program that trains the demo model."""
