"""Tables of users: files of rows and columns, and frames, read into numbers, categories and dates."""
