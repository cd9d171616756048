"""Drills: a script of faults, objectives that must hold meanwhile, and a verdict (docs/drills.md).

``scenario`` is what a file may say, ``reading`` takes it apart with line and remedy for each error. ``record`` is what
a drill saw; ``traffic``, ``moments`` and ``verdict`` are pure functions of it. ``run`` is the only part that touches
anything; it goes by the admin API, and never imports the data path.
"""
