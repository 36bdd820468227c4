"""The text that `longhaul up` prints once the API is ready."""

from __future__ import annotations

import asyncio
import sys

import httpx

POLL_SECONDS = 0.25


async def api_is_ready(api: str, model: str, key: str | None) -> None:
    """Waits until the API with this URL can answer with this model; if it tells that to nobody without a key, and
    `key` is none that works, until it accepts work."""
    params, headers = {"model": model}, {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
        while True:
            try:
                answer = await client.get(f"{api}/health/ready", params=params, headers=headers)
                if answer.status_code == httpx.codes.OK:
                    return
                if answer.status_code == httpx.codes.UNAUTHORIZED:
                    params, headers = {}, {}
            except httpx.HTTPError:
                pass
            await asyncio.sleep(POLL_SECONDS)


_KEYS = """
Requests need an API key. The first admin key: {first_key}. A key of the default project:

  export KEY=$({command} keys create --project default --name mine)
"""


def welcome(api: str, flower: str, model: str, flower_login: str, first_key: str | None = None) -> str:
    """The text, with the URLs for clients on this machine. `flower_login` is the line about logging in to Flower;
    `first_key` None: nobody is asked for a key."""
    asks = first_key is not None
    header = '-H "Authorization: Bearer $KEY" ' if asks else ""
    key = 'os.environ["KEY"]' if asks else '"unused"'
    keys = _KEYS.format(first_key=first_key, command=sys.argv[0]) if asks else ""
    imports = "import os, time" if asks else "import time"
    return f"""
Longhaul is ready.

  API      {api}/v1   (documentation: {api}/docs)
  Flower   {flower}   ({flower_login})
  Ctrl-C stops everything; no accepted response is lost.
{keys}
Create a response in the background, and retrieve it later:

  curl -s {api}/v1/responses {header}-H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "input": "Hello!", "background": true}}'
  curl -s {header}{api}/v1/responses/THE_ID_FROM_ABOVE

The same in Python (pip install openai):

  {imports}
  from openai import OpenAI

  client = OpenAI(base_url="{api}/v1", api_key={key})
  response = client.responses.create(model="{model}", input="Hello!", background=True)
  while response.status in ("queued", "in_progress"):
      time.sleep(0.5)
      response = client.responses.retrieve(response.id)
  print(response.status, response.output_text)
"""


def flower_login(auth: str, file: str | None) -> str:
    """How to log in. Only a terminal shows the password; a log names its `file` (None: set by the operator)."""
    user, _, password = auth.partition(":")
    if file is None:
        return f"user {user}, password as in LONGHAUL_FLOWER_AUTH"
    if sys.stdout.isatty():
        return f"user {user}, password {password}"
    return f"user {user}, password in {file}"
