"""The learning race: the same budget, data and draws for every way to attend, many seeds at once, and what they show."""
