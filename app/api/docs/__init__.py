"""What the OpenAPI document says of routes and answers."""
