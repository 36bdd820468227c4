"""`longhaul tools browser`: gpt-oss's browser tools as an MCP server, one page stack for each MCP session.

The tools are `search`, `open` and `find`, as `openai_harmony.ToolNamespaceConfig.browser()` describes them (schema.py).
A result has one text in gpt-oss's format for the model, which cites it as `【cursor†L5-L7】`:

    [1] Tallest mountains (https://folder.test/mountains.html)
    **viewing lines [0 - 3] of 3**

    L0:
    L1: URL: https://folder.test/mountains.html
    L2: # Tallest mountains
    L3: Mount Everest is 8849 metres high, says 【0†the survey†survey.example】.

and `structuredContent` for the worker: the data of web_search_call items and url_citation annotations.

    {"cursor": 1,                 the number by which the model cites this view; never used twice in a session
     "url": "https://...",        of the page; of the page searched for `find`; "" for results of `search`
     "title": "...",
     "lines": [0, 3],             first and last line shown; a citation may name others of the same page
     "action":                    one of
        {"type": "search", "query": "...", "sources": [{"type": "url", "url": "https://..."}, ...]}
        {"type": "open_page", "url": "https://..."}              also for scrolling; "" where results are scrolled
        {"type": "find_in_page", "url": "https://...", "pattern": "..."},
     "results":                   for `search` alone: the lines of each result, as the model may cite a result unopened
        [{"url": "https://...", "title": "...", "lines": [4, 5]}, ...]}

A call that fails (no such cursor, nothing found, an address refused) has a result with isError: one sentence for the
model. Its structuredContent is {"action": ...}, if the action is known.
"""
