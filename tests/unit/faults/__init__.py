"""What the fault suite takes for granted about the product's source."""
