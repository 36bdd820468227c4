"""How well work in windows meets its deadlines: the policy of the queue in simulated hours, without services."""
