"""The models of the tests, and the programs that train them and the demo model."""
