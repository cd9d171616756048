"""Where endpoints come from. One source each for the configuration and the shared state; others are plug-ins."""
