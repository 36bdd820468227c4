"""What stands between a server of the python tool and the code it runs: standard library alone, one script a role.

server (asyncio, MCP) -> jailer.py (one for each sandbox, outside) -> init.py (pid 1 inside) -> kernel.py (runs code)
"""
