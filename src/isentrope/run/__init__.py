"""Run folders: what was asked, results, studies, and their tables and logs."""
