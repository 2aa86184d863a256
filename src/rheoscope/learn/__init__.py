"""The learning race: every entrant gets the same budget, data and initial draws, with many seeds at once."""
