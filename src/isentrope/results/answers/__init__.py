"""What results say in words and tables: the same on the terminal, in a notebook and on the page."""
