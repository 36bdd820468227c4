"""The contenders: each is a set of processes that can be started, loaded, accounted for and held still."""
