"""The programs between the python tool's server and the code it runs; they use the standard library alone.

server (asyncio, MCP) -> jailer.py (one per sandbox, outside) -> init.py (pid 1 inside) -> kernel.py (runs code)
"""
