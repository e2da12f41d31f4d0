"""A reward that every policy gets sometimes."""


def digit_first(response_text, reference):
    """1 for a response that begins with a digit."""
    return float(response_text[:1].isdigit())
