"""What answers say in tables and lines, one file a subject; the same blocks go to the terminal and to the page."""
