"""HTTP and WebSocket, and nothing else: status codes, headers, bodies and server-sent events."""
