"""From a file, the environment and flags to :class:`sidecar.settings.Settings`, or to errors that say what to change.

``document`` reads YAML with positions, ``overrides`` lays environment and flags over it, ``structure`` compares it with
the schema, ``semantics`` checks what a schema cannot say, ``load`` joins them; ``reference`` prints the schema.
"""
