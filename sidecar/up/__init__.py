"""``warmroute up``: a whole fleet on one machine, in the foreground, that leaves nothing behind."""
