"""The admin API and the status page."""
