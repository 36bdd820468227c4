"""Who is next, and which worker takes it: pure functions over rows that `app/store/queue` reads and writes."""
