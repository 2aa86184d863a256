"""Three hands that draw the same pictures: for papers, for notebooks, for pages."""
