"""An engine that says what a script says: no model, and every fault on demand."""
