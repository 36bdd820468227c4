"""Responses over a WebSocket: its session, its messages and the streams that share one connection."""
