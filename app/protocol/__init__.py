"""OpenAI's Responses API as pure code: requests, events, statuses and errors."""
