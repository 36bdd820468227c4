"""Where the browser's results and pages come from."""
