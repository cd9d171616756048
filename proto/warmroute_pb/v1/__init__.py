"""Version 1 of the messages and services on the wire; everything here but this line is generated."""
