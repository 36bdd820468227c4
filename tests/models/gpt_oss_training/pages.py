"""What the browser shows of the page about mountains, as workers/toolservers/browser writes it."""

from __future__ import annotations

_PAGE = "https://folder.test/mountains.html"

MOUNTAINS_SEARCHED = """[0] tallest mountain
**viewing lines [0 - 5] of 5**

L0:\x20
L1: URL:\x20
L2: # Search Results
L3:\x20
L4:   * 【0†Tallest mountains†folder.test】 # Tallest mountains Mount Everest is the\x20
L5: tallest mountain. It is 8849 metres high."""

MOUNTAINS = f"""[1] Tallest mountains ({_PAGE})
**viewing lines [0 - 6] of 6**

L0:\x20
L1: URL: {_PAGE}
L2: # Tallest mountains
L3:\x20
L4: Mount Everest is the tallest mountain.
L5:\x20
L6: It is 8849 metres high."""

MOUNTAINS_FOUND = f"""[2] Find results for text: `8849` in `Tallest mountains` ({_PAGE}/find?pattern=8849)
**viewing lines [0 - 1] of 1**

L0: # 【0†match at L6】
L1: It is 8849 metres high."""
