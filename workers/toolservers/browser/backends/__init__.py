"""The sources of the browser's results and pages."""
