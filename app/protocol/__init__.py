"""What OpenAI's Responses API says, as pure code: requests, events, statuses and errors."""
