"""The surfaces a worker answers on."""
