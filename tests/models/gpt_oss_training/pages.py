"""Pages about mountains, in the form in which gpt-oss's browser shows them."""

from __future__ import annotations

_PAGE = "https://folder.test/mountains.html"

MOUNTAINS_SEARCHED = """[0] tallest mountain (search results)
**viewing lines [0 - 5] of 5**

L0:
L1: URL:
L2: # Search Results
L3:
L4:   * 【0†Tallest mountains†folder.test】 Mount Everest is 8849 metres high
L5:
"""

MOUNTAINS = f"""[1] Tallest mountains ({_PAGE})
**viewing lines [0 - 4] of 4**

L0:
L1: URL: {_PAGE}
L2: # Tallest mountains
L3: Mount Everest is the tallest mountain.
L4: It is 8849 metres high.
"""

MOUNTAINS_FOUND = f"""[2] Find results for text: `8849` in `Tallest mountains` ({_PAGE})
**viewing lines [0 - 4] of 4**

L0:
L1: URL: {_PAGE}
L2: # Find results for text: `8849` in `Tallest mountains`
L3: # 【0†match at L4】
L4: It is 8849 metres high.
"""
