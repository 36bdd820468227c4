"""What translations of other protocols share: requests for responses that carry the names of their senders' fields."""
