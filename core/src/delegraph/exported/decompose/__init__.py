"""Step 2: operators that no backend takes are decomposed, one node at a time."""
