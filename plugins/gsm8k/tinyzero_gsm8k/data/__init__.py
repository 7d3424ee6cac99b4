"""Where the problems are read from: files and folders, and the published dataset. Generated ones are in stories/."""
