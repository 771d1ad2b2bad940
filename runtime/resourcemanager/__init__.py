"""The ResourceManager: which slots exist, who asked for them and who gets them."""
