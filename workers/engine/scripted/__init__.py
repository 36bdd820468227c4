"""An engine without a model: the prompt scripts the reply, and every fault on demand."""
