"""`longhaul tools browser`: gpt-oss's browser tools as an MCP server, one page stack for each MCP session.

The tools are `search`, `open` and `find`, as `openai_harmony.ToolNamespaceConfig.browser()` describes them (schema.py).
A result is one text in gpt-oss's format, made for the model, which cites it as `【cursor†L5-L7】`:

    [1] Tallest mountains (https://folder.test/mountains.html)
    **viewing lines [0 - 3] of 3**

    L0:
    L1: URL: https://folder.test/mountains.html
    L2: # Tallest mountains
    L3: Mount Everest is 8849 metres high, says 【0†the survey†survey.example】.

and `structuredContent`, made for the worker: what an item of type web_search_call and a url_citation need.

    {"cursor": 1,                 what the model cites this view by; counts up within a session, never used twice
     "url": "https://...",        of the page; of the page searched for `find`; "" for results of `search`
     "title": "...",
     "lines": [0, 3],             first and last line shown; a citation may name others of the same page
     "action":                    one of
        {"type": "search", "query": "...", "sources": [{"type": "url", "url": "https://..."}, ...]}
        {"type": "open_page", "url": "https://..."}              also for scrolling; "" where results are scrolled
        {"type": "find_in_page", "url": "https://...", "pattern": "..."},
     "results":                   for `search` alone: whose lines are whose, as the model may cite a result unopened
        [{"url": "https://...", "title": "...", "lines": [4, 5]}, ...]}

What cannot be done (no such cursor, nothing found, an address refused) is a result with isError, whose text is one
sentence for the model; its structuredContent is {"action": ...}, where it is known what was about to be done.
"""
