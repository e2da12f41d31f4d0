"""What a verb saves: results.json, its tables, and how both are read again."""
