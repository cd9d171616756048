"""The ``warmroute`` command: one small module per command, imported when it is used. docs/cli.md lists them."""
